"""The messages from the runner to the window, one struct each."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.model import (
    Ceilings,
    Configuration,
    EnergyPairs,
    Evidence,
    Judgement,
    Numerics,
    Prediction,
    Scalar,
)
from workbench.plugins import Plugin
from workbench.protocol.catalogue import Blocked, FamilyInfo, ToggleInfo, WorkloadInfo, ended
from workbench.protocol.commands import Block, RunCommand
from workbench.protocol.option_order import LeftOut, TogglePreset

VERSION = 4
# The index of a study that the client writes; the runner counts its own studies from 0.
OWN_STUDY = -1
JOURNAL = "journal"  # the kind of the failure to write the journal, which ends no run
UNREAD = "unread"  # the kind of a line that is not a command
RANKS = "ranks"  # the kind of the failure of another rank
SCRIPT_FAILED = "script"  # the kind of a script that did not end with exit code 0


class Message(msgspec.Struct, kw_only=True, tag_field="type"):
    """Base of all messages; ``t_s`` is seconds since the runner's session clock began."""

    t_s: float = 0.0


class Catalogue(Message, tag="catalogue"):
    """The content of this runner; always its first message."""

    version: int
    created: float  # Unix time at t_s = 0
    device: str  # "cuda" or "cpu"
    device_title: str
    environment: dict[str, str]
    families: list[FamilyInfo]
    workloads: list[WorkloadInfo]
    toggles: list[ToggleInfo]
    operators: dict[str, str]  # by operator: its implementations, or why there are none
    presets: list[TogglePreset] = []
    plugins: list[Plugin] = []  # plug-ins of the runner's process, including skipped ones


class _Introduction(msgspec.Struct, tag_field="type", tag="catalogue"):
    """The fields that the catalogues of all versions have."""

    version: int


class EnvironmentFound(Message, tag="environment"):
    """Facts of the environment that became known while a script ran."""

    facts: dict[str, str]


class Availability(Message, tag="availability"):
    """Answer to Check: the blocked options by toggle and option, and all problems.

    ``toggles`` holds the resolved option of every toggle, ``left_out`` the preferred options that
    cannot be used.
    """

    configuration: Configuration
    blocked: dict[str, dict[str, Blocked]]
    problems: list[str] = []  # reasons why this configuration cannot start
    toggles: dict[str, str] = {}
    left_out: list[LeftOut] = []


class CeilingsFound(Message, tag="ceilings"):
    """The best rates of the device.

    ``source``: "kept" from an earlier run, or "measured" by this one. ``why``: what is wrong with
    the stored file, if anything. None: nothing usable is stored.
    """

    ceilings: Ceilings | None
    source: str
    why: str = ""


class Predicted(Message, tag="predicted"):
    """Answer to Predict."""

    base: Configuration
    other: Configuration
    prediction: Prediction


class State(Message, tag="state"):
    """The runner's activity: idle, building, running, paused, stopping."""

    state: str
    text: str = ""


class Progress(Message, tag="progress"):
    """The progress of a long operation; ``fraction`` is None if the end is not known."""

    task: str
    fraction: float | None = None
    text: str = ""


class Ordered(Message, tag="ordered"):
    """The runner starts this command; all messages until the next one belong to it."""

    command: RunCommand


class SegmentStarted(Message, tag="segment"):
    """Every step from here on belongs to this segment."""

    index: int
    configuration: Configuration
    label: str
    reused: bool = False  # built before: nothing was built or compiled for it
    ledger: dict[str, Scalar] = {}


class PhaseChanged(Message, tag="phase"):
    """The segment's current phase from ``t_s`` on."""

    segment: int
    phase: int


class Steps(Message, tag="steps"):
    """A batch of finished steps: columns as in ``sessions.model.STEP_COLUMNS``; None is NaN."""

    segment: int
    columns: dict[str, list[float | None]]


class Metrics(Message, tag="metrics"):
    """The measurements of the segment's model at ``t_s``.

    Rows of columns by metric; None is NaN.
    """

    segment: int
    values: dict[str, list[list[float | None]]]


class Generated(Message, tag="text"):
    """More of the text that the segment's first sequence writes.

    ``sequence`` counts the texts of a segment's arm, ``start`` the tokens before this piece: at 0
    the text begins, after ``prompt``. A text may end where the next begins, or be left out.
    """

    segment: int
    sequence: int
    start: int
    text: str
    prompt: str = ""


class TelemetrySamples(Message, tag="telemetry"):
    """A batch of device samples: columns as in ``TELEMETRY_COLUMNS``; None is NaN."""

    device: str  # "gpu0", "cpu"; of other ranks "gpu1", "cpu1" ...
    columns: dict[str, list[float | None]]


class Sampling(Message, tag="sampling"):
    """The sampling period of each column of a device's telemetry, or ``ABSENT`` and the reason."""

    device: str
    how: dict[str, str]


class Facts(Message, tag="facts"):
    """Facts for the segment's ledger that became known while it ran (compile time, loss ...)."""

    segment: int
    ledger: dict[str, Scalar]


class EvidenceFound(Message, tag="evidence"):
    """Observations which show that the segment's options took effect, or did not."""

    segment: int
    evidence: list[Evidence]


class ComparisonStarted(Message, tag="comparison"):
    """Two arms are built and begin to alternate; ``request`` holds the arguments of the command.

    With ``before`` it replaces the comparison that consists of these blocks.
    """

    index: int
    arms: list[str]  # labels, the base first
    segments: list[int]  # segments of the arms' steps
    request: dict[str, Scalar] = msgspec.field(name="asked")
    before: list[Block] = []
    prediction: Prediction | None = None  # if it was requested


class ComparisonFacts(Message, tag="compared"):
    """Further facts on how a comparison is measured; they extend ``request``."""

    comparison: int
    facts: dict[str, Scalar]


class BlockDone(Message, tag="block"):
    """A block has ended."""

    comparison: int
    block: Block


class NumericsChecked(Message, tag="numerics"):
    """The difference between an arm's outputs and the reference's."""

    comparison: int
    arm: int
    numerics: Numerics


class EnergyMeasured(Message, tag="energy"):
    """The energy of a step of both arms, or why it was not measured."""

    comparison: int
    energy: EnergyPairs


class Judged(Message, tag="judged"):
    """The judgement of the pairs so far; ``seconds`` includes the pairs of ``before``."""

    comparison: int
    judgement: Judgement
    seconds: float
    final: bool = False


class StudyStarted(Message, tag="study"):
    """A study begins: ``kind`` names it ("sweep" ...), ``request`` holds its arguments."""

    index: int
    kind: str
    title: str
    request: dict[str, Scalar | list[Scalar]] = msgspec.field(name="asked")


class StudyRows(Message, tag="rows"):
    """More rows of one of a study's tables: columns of numbers, or of text; None is NaN.

    With ``replace`` they replace the previous rows.
    """

    study: int
    table: str
    columns: dict[str, list[float | str | None]]
    replace: bool = False


class StudyFacts(Message, tag="found"):
    """Further results of a study."""

    study: int
    facts: dict[str, Scalar | list[Scalar]]


class Note(Message, tag="note"):
    """Something worth a mark on the timeline: a toggle, a warning, a note by the user."""

    kind: str  # "toggle", "note", "error", "warning", "info"
    text: str


class Described(Message, tag="described"):
    """The person gave the session a title or notes (written by the window, for the journal)."""

    title: str
    notes: str


class Failure(Message, tag="failure"):
    """Something went wrong: one sentence for the user, and what to do.

    ``set`` names the choices that make the fix, as ``Blocked.set`` does; also ``"batch"``.
    ``clears``: "triton" where clearing Triton's cache of compiled kernels is the fix.
    """

    # mistake, out-of-memory, cuda, model, compile, capture, nan, slower, hang, wire, died, journal,
    # unread, unwritten, ranks, script
    kind: str
    sentence: str
    fix: str = ""
    set: dict[str, str] = {}
    clears: Literal["", "triton"] = ""
    detail: str = ""  # traceback, for the log
    fatal: bool = False  # the runner cannot continue; a new one is needed

    @property
    def sentence_with_fix(self) -> str:
        """Return the sentence and the fix as one line."""
        return ended(self.sentence, self.fix)


class Finished(Message, tag="finished"):
    """The run ended: ``reason`` is done, stopped, cancelled or failed."""

    reason: str
    steps: int


AnyMessage = (
    Catalogue
    | EnvironmentFound
    | Availability
    | CeilingsFound
    | Predicted
    | State
    | Progress
    | Ordered
    | SegmentStarted
    | PhaseChanged
    | Steps
    | Metrics
    | Generated
    | TelemetrySamples
    | Sampling
    | Facts
    | EvidenceFound
    | ComparisonStarted
    | ComparisonFacts
    | BlockDone
    | NumericsChecked
    | EnergyMeasured
    | Judged
    | StudyStarted
    | StudyRows
    | StudyFacts
    | Note
    | Described
    | Failure
    | Finished
)
