"""Split each batch among several GPUs, each with all weights: DistributedDataParallel.

Each rank computes its rows. torch averages the gradients while the backward pass still runs, so
that all ranks make the same update as one device with the full batch. The only difference is a loss
that is not a mean over rows (the balance of experts): each rank computes it for its own rows. Helps
if the rows of one rank still fill a GPU and the all-reduce overlaps with the backward pass.
Combines with tensor and pipeline parallelism: the product of all ranks must fit the machine.
*Sharding* also splits weights and moments. Counted for HYDRA base training (114M parameters in
FP32): each rank sends 436 MiB of gradients per step. Utilization and memory are sampled for every
GPU. The peak of a step is that of the rank with the highest peak, and live metrics of a family
describe the rows of the first rank. Without a GPU the ranks are processes that share the CPU: this
shows whether results are correct, not how fast several GPUs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions.numbers import counted
from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.toggles._ranks import (
    OPTIONS,
    RANKS,
    WAITING,
    alike,
    batch_ranks_of,
    eight_bit,
    leave_graphs_unsplit,
    peaks_text,
    rank_traits,
    replayed,
    too_many,
    too_small,
)
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Finding,
    Kind,
    Situation,
    Stage,
    Toggle,
    Trait,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def _memory(option: str, situation: Situation) -> dict[str, int]:
    batch = int(situation.configuration.settings["batch"])
    return {"batch": -(-batch // batch_ranks_of(situation, **{TOGGLE.name: option}))}


def _blocked(option: str, situation: Situation) -> Blocked | None:
    ranks = RANKS[option]
    if ranks == 1:
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    batch = int(situation.configuration.settings["batch"])
    return (
        too_many(TOGGLE.name, ranks, situation)
        or replayed(situation)
        or eight_bit(situation)
        or too_small(batch, batch_ranks_of(situation, **{TOGGLE.name: option}), situation)
    )


def _apply(option: str, build: Build) -> None:
    if not build.sharding:
        build.layout = build.layout._replace(replicate=RANKS[option])
    leave_graphs_unsplit(build)


def _evidence(option: str, observed: Observed) -> Finding:
    divided = observed.divided
    if divided is None or divided.layout.data == 1:
        return no_effect("one device computes the full batch")
    rows = len(observed.batches.inputs[0])
    text = f"{divided.layout.data} ranks compute {counted(rows, 'sequence')} each"
    if divided.replicate is not None:
        reductions = divided.replicate.reductions
        text += (
            f"; {size_text(reductions.bytes)} of gradients are averaged in "
            f"{counted(reductions.buckets, 'bucket')}, {_when(observed, reductions.early)}"
        )
        if not reductions.buckets:
            return no_effect(text)
    text += peaks_text(divided, on_gpu=observed.situation.on_gpu)
    return alike(divided, text)


def _when(observed: Observed, early: int) -> str:
    """Return when buckets were averaged; ``early``: how many while gradients were missing."""
    situation, compiles = observed.situation, observed.compiles.read()
    is_separate = situation.has(Trait.COMPILED_BLOCKS) or compiles.breaks or compiles.given_up
    if compiles.graphs and not is_separate and situation.has(Trait.COMPILED):
        return "after the compiled backward pass, which returns all gradients at its end"
    return f"{early} of them during the backward pass"


TOGGLE = Toggle(
    name="data_parallel",
    title="Data parallel",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options=OPTIONS,
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    memory=_memory,
    incomparable=WAITING,
    kinds={"data": Kind("data_parallel", {})},
    traits=rank_traits(),
)
