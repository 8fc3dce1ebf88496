"""The number of micro-batches of a batch that go through a pipeline of stages.

With p stages and m micro-batches each stage waits for (p - 1) / (m + p - 1) of a step, so that many
help; but kernels on few rows are less efficient, and each micro-batch's stream is sent by itself.
Left to itself it is the largest number up to four a stage that divides the batch: from there on the
waiting hardly counts (Huang et al., GPipe, arXiv 1811.06965). Counted for two stages: 0.33 of the
step with two micro-batches, 0.11 with eight, 0.06 with sixteen.

Each micro-batch costs a stage's host as many calls as a whole batch would: where these take longer
than what the GPU computes, as of small layers, a step takes as long as the host, and half as many
micro-batches take half of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

AUTO = "auto"
_A_STAGE = 4
_COUNTS = (1, 2, 4, 8, 16, 32)


def suited(batch: int, stages: int) -> int:
    """Return a number of micro-batches that divides the batch.

    It is the largest up to four a stage, but two at least if the batch has that many rows.
    """
    divisors = [count for count in range(1, batch + 1) if batch % count == 0]
    return max(
        [count for count in divisors if 1 < count <= _A_STAGE * stages] or divisors[1:2] or [1]
    )


def micro_batches_of(situation: Situation, stages: int) -> int:
    """Return into how many micro-batches the situation's batch is divided, for so many stages."""
    option = situation.option(TOGGLE.name)
    if option != AUTO:
        return int(option)
    return suited(_rows(situation), stages)


def _rows(situation: Situation) -> int:
    """Return the rows that a pipeline computes of each batch."""
    rows = int(situation.configuration.settings["batch"])
    return rows // batch_ranks_of(situation)


def least_batch(situation: Situation) -> int:
    """Return what a batch must be a multiple of, to be divided into the requested number."""
    option = situation.option(TOGGLE.name)
    return 1 if option == AUTO else int(option)


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == AUTO:
        return None
    if layout_of(situation).pipeline == 1:
        return Blocked(
            "a step goes through no stages that could take turns",
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
    if pipeline is None or not pipeline.turns:
        return no_effect("no step was made by stages")
    forwards = [turns.forwards for turns in pipeline.turns]
    in_flight = ", ".join(str(turns.in_flight) for turns in pipeline.turns)
    text = (
        f"{_rows(observed.situation)} rows in {forwards[0]} micro-batches; the ranks had "
        f"{in_flight} of them in flight at most"
    )
    return effective(text) if set(forwards) == {int(option)} else no_effect(text)


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
    bundled="divides each batch by its rows, which inputs of your own are not known to have",
    incomparable=WAITING_STAGES,
)
