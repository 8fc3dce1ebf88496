"""The wire of a whole plausible sitting, made at once: for screenshots, replay and panels."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import attribution_samples
import claims_samples
import msgspec
import numpy as np
import optimization_samples
from fake_catalogue import availability, catalogue
from fake_steps import FakeRun
from fake_sweep import swept

from sessions.model import Configuration, Numerics, PairedComparison, Phase, Session
from sessions.verdicts import verdict
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.ui.state import config_edit

STORY: tuple[tuple[str, dict[str, str], float], ...] = (  # label, toggles, seconds of compiling
    ("baseline", {}, 0.0),
    ("precision=amp_bf16", {"precision": "amp_bf16"}, 0.0),
    ("triton=on", {"triton": "on"}, 1.2),
    ("adamw=fused", {"adamw": "fused"}, 0.0),
    ("compile=reduce-overhead", {"compile": "reduce-overhead"}, 7.5),
    ("checkpointing=selective", {"checkpointing": "selective"}, 4.0),
)
BATCH = 12
TELEMETRY_S = 0.25


def messages(
    situation: str = "running", steps: int = 160, seed: int = 7
) -> Iterator[protocol.AnyMessage]:
    """Yield what a runner would have sent until now."""
    offered = catalogue(created=time.time() - 90)
    yield offered
    first = config_edit.first(offered)
    assert first is not None
    if situation in ("first", "blocked"):
        yield availability(first)
        yield protocol.State(state="idle")
        return
    configuration = first
    run = FakeRun(seed, now=0.8)
    for label, toggles, compile_s in STORY:
        configuration = msgspec.structs.replace(
            configuration, toggles={**configuration.toggles, **toggles}
        )
        yield from segment(run, configuration, label, compile_s, steps)
    yield availability(configuration)
    yield protocol.State(t_s=run.now, state="running")
    if situation == "verdict":
        base = {**configuration.toggles, "checkpointing": "off"}
        yield from comparison(
            run, msgspec.structs.replace(configuration, toggles=base), configuration
        )
        yield protocol.State(t_s=run.now, state="idle")
    if situation == "attribution":
        blocked = {"cuda_graphs": "torch.compile reduce-overhead already captures CUDA graphs"}
        yield from attribution_samples.messages(run.now, blocked=blocked)
        yield protocol.State(t_s=run.now, state="idle")
    if situation in ("claims", "claims-cut"):
        yield from claims_samples.messages(run.now, upto=None if situation == "claims" else 17)
        yield protocol.State(t_s=run.now, state="idle")
    if situation == "optimize":
        yield from optimization_samples.messages(run.now)
        yield protocol.State(t_s=run.now, state="idle")
    if situation == "checklist":
        yield from checked(run, done=5)
    if situation in ("sweep", "sweep-map"):
        axes = {"settings.sequence": [1024, 2048, 4096, 8192, 16384, 32768]}
        if situation == "sweep-map":
            axes["model.n_layers"] = [4, 8, 16]
        arms = [{}, {"attention": "manual"}]
        yield from swept(run, protocol.Sweep(base=configuration, axes=axes, arms=arms))
        yield protocol.State(t_s=run.now, state="idle")
    if situation == "failed":
        yield protocol.Failure(
            t_s=run.now,
            kind="died",
            sentence="The runner was ended by SIGKILL. The system does this when memory runs out.",
            fix="Start a new runner; everything measured so far is kept.",
            detail="torch.OutOfMemoryError: CUDA out of memory.\nTried to allocate 2.00 GiB.",
            fatal=True,
        )


def segment(
    run: FakeRun, configuration: Configuration, label: str, compile_s: float, steps: int
) -> Iterator[protocol.AnyMessage]:
    """One configuration, from its build to its steps."""
    if run.segment >= 0:
        yield protocol.Note(t_s=run.now, kind="toggle", text=label)
    yield protocol.State(t_s=run.now, state="building", text="Building")
    yield run.begin(configuration, label)
    yield run.phase(Phase.BUILD, 0.4)
    if compile_s:
        yield run.phase(Phase.COMPILE)
        for _ in range(round(compile_s / TELEMETRY_S)):
            run.now += TELEMETRY_S
            yield run.telemetry(busy=False)
    yield run.phase(Phase.WARM_UP)
    yield protocol.State(t_s=run.now, state="running")
    yield run.evidence()
    for _ in range(0, steps, BATCH):
        yield from run.steps(BATCH)
        yield run.telemetry()


def comparison(
    run: FakeRun,
    base: Configuration,
    other: Configuration,
    before: Sequence[protocol.Block] = (),
    pairs: int = 26,
    ratio: float = 1.013,
    index: int = 0,
) -> Iterator[protocol.AnyMessage]:
    """Two arms alternated: drifting, one block void, B beyond tolerance in its numbers."""
    rng = np.random.default_rng(len(before))
    segments = []
    for side, configuration in (("A", base), ("B", other)):
        yield run.begin(configuration, f"{side}: {configuration.toggles['checkpointing']}")
        segments.append(run.segment)
        yield run.phase(Phase.BUILD, 0.2)
        yield run.phase(Phase.WARM_UP)
        yield run.evidence()
    yield protocol.State(t_s=run.now, state="running", text="Alternating A and B")
    yield protocol.ComparisonStarted(
        t_s=run.now,
        index=index,
        arms=["torch.compile: reduce-overhead", "Checkpointing: selective"],
        segments=segments,
        request={"budget_s": 20.0, "region": 0.01, "order": "random", "seed": 0},
        before=list(before),
    )
    for arm, error in ((0, 8.1e-4), (1, 2.2e-2)):
        numerics = Numerics(
            reference="float64",
            ok=arm == 0,
            text=f"relative error {error:.2g}, at most 0.0021 expected",
            max_error=12 * error,
            relative_error=error,
            tolerance=0.0021,
            mse=error**2,
            cosine=1 - error**2 / 2,
            loss_difference=error / 3,
        )
        yield protocol.NumericsChecked(t_s=run.now, comparison=index, arm=arm, numerics=numerics)
    blocks = list(before)
    first = 1 + max((block.pair for block in before), default=-1)
    for pair in range(first, first + pairs):
        for arm in rng.permutation(2).tolist():
            voids = (
                ["a compile happened during the block", ""]
                if (pair, arm) in ((3, 1), (9, 0))
                else [""]
            )
            for void in voids:
                median = 31.0 * ratio**arm * float(rng.normal(1 + pair / 500, 0.004))
                block = protocol.Block(
                    arm=arm, pair=pair, median_ms=median, clock_mhz=1980.0, void=void
                )
                blocks.append(block)
                run.now += 0.3
                yield protocol.BlockDone(t_s=run.now, comparison=index, block=block)
        judgement = verdict.judge(paired(blocks), seconds=0.6 * (pair + 1))
        yield protocol.Judged(
            t_s=run.now,
            comparison=index,
            judgement=judgement,
            seconds=0.6 * (pair + 1),
            final=pair == first + pairs - 1,
        )
        yield protocol.Progress(
            t_s=run.now, task="alternating", fraction=(pair - first + 1) / pairs
        )


CHECKED = {  # check: status, evidence, lines
    "numerics": (
        "pass",
        "against float64: relative error 0.0021, at most 0.0048 expected; loss differs by "
        "+0.00031, at most 0.02 expected",
        [],
    ),
    "syncs": (
        "fail",
        "the host waits, or would on a GPU, 3 times per step",
        [
            "models/layers/routing.py:88 in forward: count = int(mask.sum()) "
            "(item() needs values on the host)",
            "models/hydra.py:214 in forward: rows = keep.nonzero() (nonzero() needs values)",
        ],
    ),
    "graph": (
        "fail",
        "1 graph break in the first step",
        ["models/layers/routing.py:88 in forward: int(mask.sum()): Data-dependent branching"],
    ),
    "memory": (
        "pass",
        "20 steps leak no memory; the peak is 2,310.4 MiB, 0.94 times the estimate of 2,457.9 MiB",
        [],
    ),
    "speedup": ("not applicable", "no toggle is on that could make it faster", []),
    "batches": ("pass", "batch 1: against float64: relative error 0.0019", []),
}


def checked(
    run: FakeRun, done: int = len(CHECKED), index: int = 0
) -> Iterator[protocol.AnyMessage]:
    """The checklist, ``done`` of its checks so far."""
    yield protocol.StudyStarted(
        t_s=run.now, index=index, kind="checklist", title="hydra small train: AMP BF16", request={}
    )
    for name, (status, evidence, lines) in list(CHECKED.items())[:done]:
        run.now += 0.5
        for line in lines:
            columns = {"check": [name], "line": [line]}
            yield protocol.StudyRows(t_s=run.now, study=index, table="lines", columns=columns)
        row = {"check": [name], "status": [status], "evidence": [evidence]}
        yield protocol.StudyRows(t_s=run.now, study=index, table="checks", columns=row)


def paired(blocks: Sequence[protocol.Block]) -> PairedComparison:
    """The blocks as a comparison, for ``judge``."""
    return PairedComparison(
        arms=["A", "B"],
        order=[block.arm for block in blocks],
        medians_ms=[block.median_ms for block in blocks],
        ratio=math.nan,
        low=math.nan,
        high=math.nan,
        verdict="UNDECIDED",
        pairs=[block.pair for block in blocks],
        clocks_mhz=[block.clock_mhz or math.nan for block in blocks],
        voids=[block.void for block in blocks],
    )


def session(title: str = "hydra small train", seed: int = 7) -> Session:
    """The same sitting as a finished session."""
    recorder = Recorder(Session(title=title))
    for message in messages(seed=seed):
        recorder.record(message)
    return recorder.session


def compared() -> list[Session]:
    """Two more sessions to compare with."""
    yesterday = session("hydra small, yesterday", seed=8)
    other = session("hydra small, other driver", seed=9)
    other.environment["driver"] = "570.86.15"
    for segment in other.segments:
        segment.steps["gpu_ms"][:] *= 1.06
    return [yesterday, other]
