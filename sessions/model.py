"""The parts of a session, in memory: configuration, segments, telemetry, events.

A *session* is one sitting: an environment and a list of segments. A *segment* is the steps that ran
under one configuration. Times are seconds since the session began, bytes are bytes, ``*_ms`` are
milliseconds. A number that was not measured is NaN, never 0.
"""

from __future__ import annotations

import enum
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import msgspec
from numpy.typing import NDArray

from sessions.columns import Columns
from sessions.schema import METRIC_COLUMNS as METRIC_COLUMNS
from sessions.schema import STEP_COLUMNS as STEP_COLUMNS
from sessions.schema import TELEMETRY_COLUMNS as TELEMETRY_COLUMNS

# In a session's environment, before a column of telemetry: how often it is sampled, or why not.
SAMPLING = "sampling "
ABSENT = "absent: "


class Phase(enum.IntEnum):
    """The purpose of a step's time; only ``STEADY`` steps are compared."""

    BUILD = 0
    COMPILE = 1
    AUTOTUNE = 2
    CAPTURE = 3
    WARM_UP = 4
    STEADY = 5
    CEILINGS = 6  # the device's ceilings are measured; no step is
    CHECK = 7  # a segment's results are compared with a reference; no step is

    @property
    def title(self) -> str:
        """The phase's name as people read it."""
        titles = {Phase.CEILINGS: "measuring ceilings", Phase.CHECK: "checking results"}
        return titles.get(self, self.name.lower().replace("_", "-"))


Scalar = bool | int | float | str
OWN = "own"  # the family of models from files of one's own
HF = "hf:"  # begins the source of a Hugging Face configuration, instead of a file's path
BUILD_FUNCTION = "build"  # the function of a model's file if the source names none
SCRIPT = "script"  # the family of training scripts that were watched and not changed
KERNELS = "kernels"  # the family of a segment that timed a kernel, and no model
# Kinds of studies.
ATTRIBUTION, CHECKLIST, CLAIMS = "attribution", "checklist", "claims"
OPTIMIZATION, PROFILE, SCALING, SWEEP = "optimization", "profile", "scaling", "sweep"


def split_source(source: str) -> tuple[str, str]:
    """Return the file and the function of ``FILE.py:function``; a path may have colons, too."""
    file, colon, function = source.rpartition(":")
    return (file, function) if colon and function.isidentifier() else (source, BUILD_FUNCTION)


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The complete description of a run: a segment can be repeated from it alone."""

    family: str
    preset: str
    model: dict[str, Scalar] = {}  # fields that differ from the preset
    workload: str = "forward"
    settings: dict[str, Scalar] = {}  # the workload's, e.g. batch, sequence
    toggles: dict[str, str] = {}  # every toggle's requested option
    seed: int = 0
    data: str = "synthetic"  # or the path of a text file

    @property
    def title(self) -> str:
        """Family, preset and workload; the file of a script, or of a model of one's own."""
        if self.family == SCRIPT:
            return self.preset
        if self.family == OWN and "source" in self.model:
            source = str(self.model["source"])
            if source.startswith(HF):
                return f"{PurePath(source.removeprefix(HF)).name} {self.workload}"
            return f"{PurePath(split_source(source)[0]).stem} {self.workload}"
        return f"{self.family} {self.preset} {self.workload}"

    @property
    def throughput_unit(self) -> str:
        """The unit of throughput: tokens, or samples of a model from a person's own file."""
        has_samples = self.family == OWN and not str(self.model.get("source", "")).startswith(HF)
        return "samples" if has_samples else "tokens"

    def flat(self) -> dict[str, Scalar]:
        """Return every field by a dotted name, for tables of differences."""
        flat: dict[str, Scalar] = {
            "family": self.family,
            "preset": self.preset,
            "workload": self.workload,
            "seed": self.seed,
            "data": self.data,
        }
        for group in ("model", "settings", "toggles"):
            for name, value in sorted(getattr(self, group).items()):
                flat[f"{group}.{name}"] = value
        return flat

    def replaced(self, name: str, value: Scalar) -> Configuration:
        """Return the configuration with the field of this dotted name changed.

        Raises ``ValueError`` for a name that no configuration has.
        """
        group, _, field = name.partition(".")
        if field and group in ("model", "settings", "toggles"):
            member = value if group != "toggles" else str(value)
            return msgspec.structs.replace(self, **{group: {**getattr(self, group), field: member}})
        if name in ("preset", "workload", "data"):
            return msgspec.structs.replace(self, **{name: str(value)})
        raise ValueError(
            f"field {name!r} cannot be varied; expected model.NAME, settings.NAME, toggles.NAME, "
            "preset, workload or data"
        )


class Evidence(msgspec.Struct, frozen=True):
    """The effect of a requested option on a segment, and how it was observed."""

    toggle: str
    requested: str
    status: str  # "effective", "no effect", "as default", "failed" or "unknown"
    text: str


class PairedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Alternating blocks of two or more arms, and their result."""

    arms: list[str]  # label of each arm; the first is the base
    order: list[int]  # arm of each block, as they ran
    medians_ms: list[float]  # median step time of each block, as they ran
    ratio: float  # step time of the second arm over the first
    low: float  # lower end of the 95 % interval; NaN if there is none
    high: float
    verdict: str  # "FASTER", "SLOWER", "SAME" or "UNDECIDED"
    facts: dict[str, Any] = {}
    pairs: list[int] = []  # pair of each block; empty: neighbours make a pair
    clocks_mhz: list[float] = []  # SM clock of each block, NaN where unknown; empty: all unknown
    voids: list[str] = []  # why each block does not count, "" where it does; empty: all count
    means_ms: list[float] = []  # mean step time of each block, NaN where unknown; empty likewise
    builds: list[int] = []  # build of both arms that each block ran in; empty: all in the first

    @property
    def segment_indices(self) -> list[int]:
        """Index of each arm's segment; none if the session does not name them."""
        return list(self.facts.get("segments", ()))


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a paired comparison so far; see ``sessions.verdicts.verdict``."""

    verdict: str  # "FASTER", "SLOWER", "SAME" or "UNDECIDED"
    pairs: int
    ratio: float | None  # step time of the second arm over the first; None without a pair
    low: float | None  # lower end of the 95 % interval, valid at any number of looks
    high: float | None
    cycles: list[float | None] | None = None  # ratio, low, high in clock cycles
    # The same of all steps together: of the blocks' means.
    of_means: list[float | None] | None = msgspec.field(default=None, name="whole")
    p: float = 1.0  # p value of "the arms are the same in practice"
    settled: bool = False  # the interval is as narrow as requested
    more_s: float | None = None  # seconds until a decision, if undecided
    builds: int = 1  # how often both arms were built; with 1 the interval describes one build
    invalid: str = ""  # why no verdict can hold, as a clause: an arm was impossibly fast
    reasons: list[str] = []


class EnergyPairs(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of a step in pairs of long blocks of two arms; see ``sessions.verdicts.energy``."""

    joules: list[list[float]] = []  # joules of a step of each arm, by pair
    ratio: float | None = None  # the second arm's over the first's
    low: float | None = None  # lower end of the 95 % interval; None with too few pairs
    high: float | None = None
    why_not: str = ""  # why it was not measured, as a clause


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """An arm's outputs on one batch against a reference of the same weights in more digits."""

    reference: str  # "float64" or "float32"; empty without one (see ``text``)
    ok: bool | None  # within tolerance; None where it was not checked
    text: str  # in words
    max_error: float | None = None  # largest absolute difference of an output
    relative_error: float | None = None  # Euclidean norm of the difference over the reference's
    tolerance: float | None = None  # limit of the relative error
    mse: float | None = None
    cosine: float | None = None
    loss_difference: float | None = None  # difference of the losses in training
    curve_steps: int | None = None  # training steps whose losses were compared
    curve_difference: float | None = None  # the largest of their differences
    curve_allowed: float | None = None  # limit of these differences


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """The best measured rates of a device: the roof that steps are set against."""

    device: str
    driver: str  # version of a GPU's driver; on the CPU, the number of threads
    torch: str
    created: float  # Unix time
    bytes_per_s: float  # rate of a large copy, read and written
    flops_per_s: dict[str, float]  # rates of large matrix products: "bfloat16", "tf32", "int8" ...
    lacking: dict[str, str] = {}  # why there is no rate of a dtype, in a clause
    disturbed: str = ""  # the clause that names other users of the device: rates may be too low


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The roofline's estimate of two configurations before they are measured."""

    ratio: float | None  # step time of the second over the first; None where none is made
    text: str  # a clause: the basis, or the reason if there is none
    base_us: float | None = None  # the least that a step can take at the ceilings
    other_us: float | None = None


class PhaseSpan(msgspec.Struct, frozen=True):
    """A stretch of one segment spent in one phase; seconds since the session began."""

    phase: int
    start_s: float
    stop_s: float


@dataclass
class MetricSeries:
    """Numbers that a model measured of itself while a segment ran: a matrix at each sample."""

    title: str
    unit: str  # "" for a share or a plain number
    help: str  # one sentence
    row: str  # the meaning of a row, for example "block"
    column: str  # the meaning of a column ("expert", "head"); empty if there is only one
    shape: tuple[int, int]  # rows, columns
    table: Mapping[str, NDArray]  # t_s (samples,) and values (samples, rows, columns)


@dataclass
class Segment:
    """The steps under one configuration."""

    index: int
    configuration: Configuration
    label: str
    start_s: float = 0.0
    phases: list[PhaseSpan] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    ledger: dict[str, Any] = field(default_factory=dict)  # other facts: parameter count, FLOPs ...
    steps: Mapping[str, NDArray] = field(default_factory=lambda: Columns(STEP_COLUMNS))
    breakdown: Mapping[str, NDArray] = field(default_factory=dict)  # columns of schema.BREAKDOWN
    memory: Mapping[str, NDArray] = field(default_factory=dict)  # columns of schema.MEMORY
    metrics: dict[str, MetricSeries] = field(default_factory=dict)  # by the metric's name

    @property
    def title(self) -> str:
        """The label, or else the number."""
        return self.label or f"segment {self.index}"


@dataclass
class Event:
    """Something that happened at one time: a toggle, a note, an error."""

    t_s: float
    kind: str  # "toggle", "note", "error", "warning", "info"
    text: str


@dataclass
class Study:
    """A measurement of several configurations, or with extra steps, and its tables.

    ``tables`` are columns of numbers, or of text, by table and column; a number that was not
    measured is NaN. ``sessions.storage.study_schema`` describes the columns.
    """

    kind: str  # "attribution", "sweep", ...
    title: str
    start_s: float
    request: dict[str, Any] = field(default_factory=dict)  # the command's arguments
    facts: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Mapping[str, NDArray]] = field(default_factory=dict)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A command that the runner received; it caused all additions until the next order.

    ``command``: the fields of the command as it was sent, including its ``type``.
    ``claims``: the index of the study of claims that sent it; None if the user did.
    """

    start_s: float
    command: dict[str, Any]
    segments: int = 0  # number before the order; likewise for comparisons and studies
    comparisons: int = 0
    studies: int = 0
    claims: int | None = None


@dataclass
class Session:
    """One sitting, live or loaded from a file."""

    title: str = "Untitled"
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: float = field(default_factory=time.time)  # Unix time
    notes: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)  # titles of toggles and fields
    segments: list[Segment] = field(default_factory=list)
    telemetry: dict[str, Mapping[str, NDArray]] = field(default_factory=dict)  # "gpu0", "gpu1"
    events: list[Event] = field(default_factory=list)
    comparisons: list[PairedComparison] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)  # older files have none
