"""The commands from the window to the runner, one struct each."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.model import Configuration, Scalar

# Share of a run's time for blocks of its baseline: the default, and the maximum.
PAIRING_SHARE = 0.05
MOST_PAIRING_SHARE = 0.5


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one arm of a paired comparison, run without a pause."""

    arm: int  # 0 or 1
    pair: int
    median_ms: float
    clock_mhz: float | None = None  # clock of the multiprocessors; None if unknown
    void: str = ""  # why the block does not count; empty where it does
    mean_ms: float | None = None  # None if unknown
    build: int = 0  # number of the arms' build, from 0


class Command(msgspec.Struct, kw_only=True, tag_field="type"):
    """Base of all commands."""


class Start(Command, tag="start"):
    """Build the configuration and run it until ``steps`` or ``seconds`` have passed, or Stop.

    ``check``: when the numbers of each configuration are compared with a reference, once: never,
    after its ``last`` step, or in a pause between two steps after it was ``steady`` for a moment
    (a command delays this pause). Facts report it in the form of ``sessions.numerics``.
    ``load_state``: a file of decode state to continue from; ``save_state``: the file for the decode
    state at the end of the run. Empty: none. Both are for workloads that decode.
    ``pairing_share``: share of the time for short blocks of the baseline after a toggle, so that
    the ratio to it is paired; 0: none. ``baseline``: a configuration that ran before in this
    runner; None, or a configuration of other work: the first steady configuration of the run.
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

    ``operators``: their names; empty: all. ``dtype``: "bfloat16" and the like; empty: the fastest
    one that the device computes well in. ``every_case``: the small sizes too. ``cases`` and
    ``implementations``: names; operators run only those that they have. ``forward_only``: no
    gradients, and no profiler, which slows later timings. ``tune``: tune the Triton kernels first,
    and time them with tuned tiles and with the heuristics' tiles. ``model_shapes``: use the shapes
    of these public models instead of the operators' own cases; empty: of all models. ``budget_s``:
    total seconds of timing, shared equally by the cases; None: a few rounds of each.
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

    ``budget_s``: seconds of alternating, without building. ``region``, ``floor`` and ``half_width``
    as in ``verdict.judge``. ``order`` within the pairs: "random" or "abba". ``before``: the blocks
    of an earlier comparison of the two, which took ``before_s``; this command continues it.
    ``predict``: first report the roofline's prediction. ``build_count``: how often both are built;
    the builds share the budget; 0: several times if that is cheap, else once. ``energy``: measure
    joules per step afterwards, with up to half of the budget in addition. ``require_same_work``:
    refuse two different models, because their ratio is no speed-up.
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
    floor_note: str = ""  # the floor's origin, if it was not measured for these configurations
    build_count: int = 0
    energy: bool = True
    require_same_work: bool = False


class Predict(Command, tag="predict"):
    """Request the roofline's prediction for two configurations; Predicted answers between steps."""

    base: Configuration
    other: Configuration


class MeasureCeilings(Command, tag="ceilings"):
    """Report the device's highest rates: measured again if ``anew`` or if none are stored."""

    anew: bool = True


class Attribute(Command, tag="attribute"):
    """Run a base and its variants with toggles in interleaved rounds: the effect of each toggle.

    ``toggles``: option by name, in the order of the ladder. ``mode`` as in
    ``attribution.design.MODES``; ``orders``: the number of sampled orders, if the mode samples.
    ``budget_s``: seconds of alternating, without building. ``build_s``: longest time of building,
    with compilation; later arms are left out, with the reason. ``timed``: "step", or "backward" for
    the backward pass of training steps alone. The answer is a study.
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
    compiles, checks, races and verdicts. ``include``: the searched toggles; empty: all.
    ``exclude``: toggles that do not change. ``batches``: additional batch sizes to try; times and
    joules are then scaled to the samples of ``base``. The rest is as in ``Compare``.
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

    ``steps``: number of steps for checks that watch steps. ``batches``: other batch sizes to try;
    empty: 1 and one more than the configuration's. ``expect_speedup``: least speed-up over
    everything switched off; None: not slower. The rest is as in ``Compare``.
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

    ``traces``: files for the Chrome traces, one for each configuration, or none; a file that ends
    in ``.gz`` is compressed. Each configuration becomes a study, as in ``breakdown``.
    """

    configurations: list[Configuration]
    steps: int = 3
    traces: list[str] = []


class Sweep(Command, tag="sweep"):
    """Measure a configuration at every combination of some fields' values, under several arms.

    ``axes``: one or two fields by the dotted names of ``Configuration.flat``, with their values.
    ``arms``: sets of toggles that replace the base's; empty: only the base. ``seconds``: time of
    steady steps at each point.
    """

    base: Configuration
    axes: dict[str, list[Scalar]]
    arms: list[dict[str, str]] = []
    seconds: float = 3.0
    seed: int = 0


class Scale(Command, tag="scale"):
    """Compare a training step on one device with the same on more ranks; answered by a study.

    ``ranks``: numbers of ranks. ``kinds`` as in ``workbench.runner.experiments.rank_kinds``.
    ``mode``: "strong" divides the batch of ``base`` among the ranks, "weak" gives every rank a full
    batch. ``budget_s``: seconds of alternating for each comparison. ``lanes``: record the activity
    of each rank in some steps, after all timing. ``toggles``: replace those of ``base`` on several
    ranks. The rest is as in ``Compare``.
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

    ``folder``: the folder to which its processes write their records; its file ``ended`` contains
    the exit code at the end. ``segment``: the segment that its steps continue; a new one if None.
    ``block``: number of the block of a comparison that the steps belong to, from 1.
    """

    configuration: Configuration
    label: str
    folder: str
    segment: int | None = None
    block: int = 0


class Apply(Command, tag="apply"):
    """Change toggles of the run in progress; omitted toggles do not change."""

    toggles: dict[str, str]


class Baseline(Command, tag="baseline"):
    """Pair the run in progress with this configuration from the next toggle on, as in ``Start``."""

    configuration: Configuration


class Check(Command, tag="check"):
    """Ask which options are blocked under a configuration; answered at once by Availability."""

    configuration: Configuration


class Inspect(Command, tag="inspect"):
    """Ask the same about a user's model as it is built: Availability answers, or a Failure.

    Unlike Check it runs the model's file, so it ends a run.
    """

    configuration: Configuration


class Pause(Command, tag="pause"):
    """Stop stepping between two steps, keeping everything built."""


class Resume(Command, tag="resume"):
    """Continue stepping."""


class Stop(Command, tag="stop"):
    """End the run after the current step; the runner and its builds are kept for the next run."""


class Cancel(Command, tag="cancel"):
    """Stop as soon as possible; an unfinished build is discarded."""


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
    | Inspect
    | Pause
    | Resume
    | Stop
    | Cancel
    | ClearTritonCache
    | Quit
)
