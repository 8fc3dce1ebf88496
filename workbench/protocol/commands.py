"""The commands from the window to the runner, one struct each."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.model import Configuration, Scalar

# Of a run's time, for blocks of its baseline: what they get unless told otherwise, and at most.
PAIRING_SHARE = 0.05
MOST_PAIRING_SHARE = 0.5


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one arm of a paired comparison, run without a pause."""

    arm: int  # 0 or 1
    pair: int
    median_ms: float
    clock_mhz: float | None = None  # of the multiprocessors; None where not known
    void: str = ""  # why the block does not count; empty where it does
    mean_ms: float | None = None  # None where not known
    build: int = 0  # of both arms, from 0 on


class Command(msgspec.Struct, kw_only=True, tag_field="type"):
    """Base of all commands."""


class Start(Command, tag="start"):
    """Build the configuration and run it until ``steps`` or ``seconds`` have passed, or Stop.

    ``check``: whether the numbers of each configuration are compared with a reference, once: not,
    after its ``last`` step, or in a pause between two when it has been ``steady`` for a moment,
    which a command puts off. Facts tell of it as ``sessions.numerics`` says.
    ``load_state``: a file of decode state to go on from; ``save_state``: where to leave one when
    the run ends between two steps. Empty: none. Both are for workloads that decode.
    ``pairing_share``: the part of the time that short blocks of the baseline may take after a
    toggle, so that the ratio against it is a paired one; 0: none. ``baseline``: a configuration
    that ran before in this runner; None, or one of other work: the first of the run that is steady.
    ``floor`` and ``floor_note`` of that ratio as in ``Compare``.
    """

    configuration: Configuration
    steps: int | None = None
    seconds: float | None = None
    check: Literal["never", "last", "steady"] = "never"
    load_state: str = ""
    save_state: str = ""
    pairing_share: float = 0.0
    baseline: Configuration | None = None
    floor: float = 0.0
    floor_note: str = ""


class Bench(Command, tag="bench"):
    """Time operators of the kernel library: a segment for each implementation and direction.

    ``operators``: their names, all where empty. ``dtype``: "bfloat16" and the like; the fastest one
    that the device computes well in where empty. ``every_case``: the small sizes too. ``cases`` and
    ``implementations``: these alone, by name, of whichever operator has them. ``forward_only``: no
    gradients, and nothing under the profiler, which slows what is timed after it. ``tune``: the
    Triton kernels first, which are then timed with their heuristics' tiles as well.
    ``model_shapes``: in place of the operators' own cases those of these public models, of all
    where empty. ``budget_s``: seconds of timing for all together, shared equally among the cases;
    some rounds where None.
    """

    operators: list[str] = []
    dtype: str = ""
    every_case: bool = False
    cases: list[str] = []
    implementations: list[str] = []
    forward_only: bool = False
    tune: bool = False
    model_shapes: list[str] | None = None
    budget_s: float | None = None


class Compare(Command, tag="compare"):
    """Run two configurations in alternating blocks until the verdict is settled or time is spent.

    ``budget_s``: seconds of alternating, without what building takes. ``region``, ``floor`` and
    ``half_width`` as in ``verdict.judge``. ``order`` within the pairs: "random" or "abba".
    ``before``: the blocks of an earlier comparison of the two, which took ``before_s``; it goes on.
    ``predict``: say first what the roofline makes of the two. ``build_count``: how often both are
    built, the budget divided among the builds; 0: several times if that is cheap, else once.
    ``energy``: measure joules a step afterwards, in up to half of the budget more.
    ``require_same_work``: refuse two different models, of which no speed can be expected.
    """

    base: Configuration
    other: Configuration
    budget_s: float = 20.0
    region: float = 0.01
    floor: float = 0.0
    half_width: float = 0.005
    order: str = "random"
    seed: int = 0
    before: list[Block] = []
    before_s: float = 0.0
    predict: bool = False
    floor_note: str = ""  # whose floor it is, where it is not that of what is compared
    build_count: int = 0
    energy: bool = True
    require_same_work: bool = False


class Predict(Command, tag="predict"):
    """Ask what the roofline makes of two configurations, between two steps; Predicted answers."""

    base: Configuration
    other: Configuration


class MeasureCeilings(Command, tag="ceilings"):
    """Tell what the device reaches at best: measured ``anew``, or else only if it is not kept."""

    anew: bool = True


class Attribute(Command, tag="attribute"):
    """Run a base and what toggles make of it in interleaved rounds: which of them gave what.

    ``toggles``: option by name, in the order of the ladder. ``mode`` as in
    ``attribution.design.MODES``; ``orders`` are how many it samples, where it does. ``budget_s``:
    seconds of alternating, without what building takes. ``build_s``: seconds that building may
    take, compiling included; the arms that are not reached by then are left out, with the reason.
    ``timed``: "step", or "backward" for the backward pass of training steps alone.
    The answer is a study.
    """

    base: Configuration
    toggles: dict[str, str]
    mode: str = "ladder"
    budget_s: float = 60.0
    region: float = 0.01
    floor: float = 0.0
    half_width: float = 0.005
    seed: int = 0
    orders: int = 8
    build_s: float | None = None
    floor_note: str = ""
    timed: Literal["step", "backward"] = "step"


class Optimize(Command, tag="optimize"):
    """Search for the best configuration (``sessions.studies.optimization``); answered by a study.

    The result keeps the limits ``memory_limit`` (bytes) and ``max_error`` (largest absolute error
    of an output against the reference); None: no limit. ``budget_s``: seconds of all builds,
    compiles, checks, races and verdicts. ``include``: the toggles that are searched, all where
    empty; ``exclude``: toggles that stay as they are. ``batches``: batch sizes that are tried
    beside that of ``base``; times and joules are then of so many samples as ``base`` has. The rest
    as in ``Compare``.
    """

    base: Configuration
    objective: Literal["time", "memory", "energy"] = "time"
    memory_limit: float | None = None
    max_error: float | None = None
    budget_s: float = 600.0
    include: list[str] = []
    exclude: list[str] = []
    region: float = 0.01
    floor: float = 0.0
    half_width: float = 0.005
    seed: int = 0
    floor_note: str = ""
    batches: list[int] = []


class Validate(Command, tag="validate"):
    """Check a configuration: a study of the checks in ``sessions.studies.checklist``.

    ``steps`` are watched by each check that watches some. ``batches``: other batch sizes to try;
    1 and one more than the configuration's where empty. ``expect_speedup`` over everything switched
    off; without it, not to be slower. The rest as in Compare.
    """

    configuration: Configuration
    steps: int = 20
    batches: list[int] = []
    expect_speedup: float | None = None
    budget_s: float = 20.0
    region: float = 0.01
    floor: float = 0.0
    floor_note: str = ""


class Profile(Command, tag="profile"):
    """Profile ``steps`` marked steps of each configuration: where time and memory go.

    ``traces``: files for the Chrome traces, one for each configuration, or none; what ends in
    ``.gz`` is compressed. Each configuration becomes a study, as ``breakdown`` says.
    """

    configurations: list[Configuration]
    steps: int = 3
    traces: list[str] = []


class Sweep(Command, tag="sweep"):
    """Measure a configuration at every combination of some fields' values, under several arms.

    ``axes``: one or two fields by the dotted names of ``Configuration.flat``, with their values.
    ``arms``: toggles, each set over the base's; none: the base as it is. ``seconds``: of steady
    steps at each point.
    """

    base: Configuration
    axes: dict[str, list[Scalar]]
    arms: list[dict[str, str]] = []
    seconds: float = 3.0
    seed: int = 0


class Scale(Command, tag="scale"):
    """Compare a training step on one device with the same on more ranks; answered by a study.

    ``ranks``: their numbers. ``kinds`` as in ``workbench.runner.experiments.rank_kinds``. ``mode``:
    "strong" divides the batch of ``base`` among the ranks, "weak" gives every rank such a batch.
    ``budget_s``: seconds of alternating for each comparison. ``lanes``: record what each rank does
    in some steps, after everything was timed. ``toggles``: set over those of ``base`` on several
    ranks. The rest as in ``Compare``.
    """

    base: Configuration
    ranks: list[int]
    kinds: list[str]
    mode: Literal["strong", "weak"] = "strong"
    budget_s: float = 20.0
    region: float = 0.01
    floor: float = 0.0
    floor_note: str = ""
    half_width: float = 0.005
    seed: int = 0
    lanes: bool = True
    toggles: dict[str, str] = {}


class Script(Command, tag="script"):
    """Watch a training script that is being started, until it ends or Cancel.

    ``folder``: where its processes write what they record; the file ``ended`` there holds its exit
    code once there is one. ``segment``: the segment that its steps
    continue; a new one if None. ``block``: of the comparison that the steps are a block of, from 1.
    """

    configuration: Configuration
    label: str
    folder: str
    segment: int | None = None
    block: int = 0


class Apply(Command, tag="apply"):
    """Change toggles of the run in progress; those left out stay as they are."""

    toggles: dict[str, str]


class Baseline(Command, tag="baseline"):
    """Pair the run in progress with this configuration from the next toggle on, as in ``Start``."""

    configuration: Configuration


class Check(Command, tag="check"):
    """Ask which options are blocked under a configuration; answered at once by Availability."""

    configuration: Configuration


class Pause(Command, tag="pause"):
    """Stop stepping between two steps, keeping everything built."""


class Resume(Command, tag="resume"):
    """Go on stepping."""


class Stop(Command, tag="stop"):
    """End the run after the current step; the runner and what it built stay for the next."""


class Cancel(Command, tag="cancel"):
    """Stop as soon as possible; what is being built is given up."""


class ClearTritonCache(Command, tag="clear-triton-cache"):
    """Delete the kernels that Triton keeps compiled on disk; a note answers. It ends a run."""


class Quit(Command, tag="quit"):
    """End the runner."""


RunCommand = (  # run by themselves
    Start
    | Bench
    | Compare
    | Attribute
    | Optimize
    | Validate
    | Profile
    | Sweep
    | Scale
    | MeasureCeilings
)
AnyCommand = (
    RunCommand
    | Predict
    | Script
    | Apply
    | Baseline
    | Check
    | Pause
    | Resume
    | Stop
    | Cancel
    | ClearTritonCache
    | Quit
)
