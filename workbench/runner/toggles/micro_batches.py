"""The number of micro-batches that a batch is split into for pipeline parallelism.

With p stages and m micro-batches each stage waits for (p - 1) / (m + p - 1) of a step, so many
micro-batches help. But kernels on few rows are less efficient, and the residual stream of each
micro-batch is sent separately. *Automatic* is the largest number that divides the batch, up to four
per stage: more reduce the waiting only slightly (Huang et al., GPipe, arXiv 1811.06965). Counted
for two stages: ranks wait for 0.33 of the step with two micro-batches, 0.11 with eight, 0.06 with
sixteen.

Each micro-batch needs as many kernel launches as a whole batch. If launches take longer than the
GPU's work, as with small layers, the host determines the step time, and half as many micro-batches
halve it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.toggles._ranks import (
    PIPELINE,
    WAITING_STAGES,
    batch_ranks_of,
    layout_of,
)
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.distributed.pipeline import Pipeline
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

AUTO = "auto"
_PER_STAGE = 4
_COUNTS = (1, 2, 4, 8, 16, 32)


def suited(batch: int, stages: int) -> int:
    """Return a number of micro-batches that divides the batch.

    It is the largest up to four per stage, but at least two if the batch has that many rows.
    """
    divisors = [count for count in range(1, batch + 1) if batch % count == 0]
    return max(
        [count for count in divisors if 1 < count <= _PER_STAGE * stages] or divisors[1:2] or [1]
    )


def micro_batches_of(situation: Situation, stages: int) -> int:
    """Return the number of micro-batches of the situation's batch for ``stages`` stages."""
    option = situation.option(TOGGLE.name)
    if option != AUTO:
        return int(option)
    return suited(_rows(situation), stages)


def _rows(situation: Situation) -> int:
    """Return the rows that a pipeline computes of each batch."""
    rows = int(situation.configuration.settings["batch"])
    return rows // batch_ranks_of(situation)


def least_batch(situation: Situation) -> int:
    """Return the number that a batch must be a multiple of, to have the requested micro-batches."""
    option = situation.option(TOGGLE.name)
    return 1 if option == AUTO else int(option)


def in_flight_text(pipeline: Pipeline, in_flight: Iterable[int]) -> str:
    """Return how many micro-batches wait for their backward pass at most, by rank or stage.

    A rank with several stages counts each micro-batch once per stage: its forward passes.
    """
    counts = ", ".join(map(str, in_flight))
    passes = "forward passes " if pipeline.chunks > 1 else ""
    return f"{passes}in flight at most: {counts}"


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == AUTO:
        return None
    if layout_of(situation).pipeline == 1:
        return Blocked(
            "needs pipeline parallelism, which is off",
            "Switch pipeline parallelism on.",
            {PIPELINE: "2"},
        )
    batch, count = _rows(situation), int(option)
    if batch % count:
        return Blocked(
            f"a batch of {batch} cannot be divided into {count} micro-batches",
            f"Choose a batch that is a multiple of {count}.",
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.micro_batches = int(option)


def _evidence(option: str, observed: Observed) -> Finding:
    pipeline = None if observed.divided is None else observed.divided.pipeline
    if pipeline is None or not pipeline.step_counts:
        return no_effect("no step ran in pipeline stages")
    # Each of a rank's stages computes every micro-batch once.
    by_rank = [counts.forwards / pipeline.chunks for counts in pipeline.step_counts]
    in_flight = in_flight_text(pipeline, (counts.in_flight for counts in pipeline.step_counts))
    rows, batches = _rows(observed.situation), "micro-batch" if by_rank[0] == 1 else "micro-batches"
    text = f"{counted(rows, 'row')} in {by_rank[0]:g} {batches}; by rank, {in_flight}"
    return effective(text) if set(by_rank) == {int(option)} else no_effect(text)


TOGGLE = Toggle(
    name="micro_batches",
    title="Micro-batches",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options={AUTO: "Automatic"} | {str(count): str(count) for count in _COUNTS},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="splits each batch by its rows; the inputs of your own model may not have rows",
    incomparable=WAITING_STAGES,
)
