"""Put the blocks on several GPUs, one stage after another, which micro-batches go through.

As in GPipe (Huang et al., arXiv 1811.06965): the first rank has the embedding and the first blocks,
the last one the last blocks, the head and the loss. Each batch is divided by its rows; streams go
forward and their gradients backward between neighbours, and one update follows from all of it, the
same as of the whole batch. The turns are one forward, one backward (1F1B, PipeDream-Flush as in
Narayanan et al., arXiv 2104.04473): p stages and m micro-batches make every rank wait for
(p - 1) / (m + p - 1) of a step. Pays where a step does not fit one GPU, or links are too slow for
what other ways to divide it send. Counted for HYDRA base training (8 x 1,024 tokens), two ranks, 8
micro-batches: each rank has 0.67 of weights, gradients and moments, sends 24 MiB of streams or
their gradients a step and once 147 MiB, the gradient of an embedding that is the head too, and
waits for 0.11 of the step; the last one, with the head, has more to compute.

torch.distributed.pipelining runs the schedule; losses of a stage's own blocks are injected into
the gradient of its output. The first GPU also keeps the full weights and moments, from which other
configurations continue; if a rank ends, they are as they were before these steps. Live metrics are
of all stages, means over the micro-batches. Without a GPU the ranks share the CPU, which shows that
results are right and not how fast they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import Footprint
from models.parallel.pipeline_footprint import largest_stage
from models.parallel.pipeline_stages import chain
from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.distributed.mesh import CHUNKS
from workbench.runner.toggles import conflict
from workbench.runner.toggles._ranks import (
    OPTIONS,
    RANKS,
    SCHEDULE,
    WAITING,
    batch_ranks_of,
    captured,
    eight_bit,
    peaks_text,
    rank_traits,
    stage_chunks_of,
    too_many,
    undivided_sizes,
)
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Finding,
    Kind,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)
from workbench.runner.toggles.micro_batches import micro_batches_of
from workbench.runner.variants.compiles import counted

if TYPE_CHECKING:
    from workbench.runner.distributed.parallel import Parallel
    from workbench.runner.distributed.pipeline import Pipeline
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def pipeline_ranks_of(situation: Situation) -> int:
    """Return on how many ranks the blocks of the situation's model are stages."""
    return RANKS[situation.option(TOGGLE.name)]


def of_stages(situation: Situation, step: dict[str, Any]) -> Footprint | None:
    """Return the footprint of the rank that needs most; None for a situation without stages.

    ``step`` holds the arguments of ``models``' footprints.
    """
    ranks, family, config = pipeline_ranks_of(situation), situation.family, situation.config
    if ranks == 1 or not situation.workload.trains or chain(family, config).n_blocks < ranks:
        return None
    count = micro_batches_of(situation, ranks)
    chunks = stage_chunks_of(situation)
    if chain(family, config).n_blocks < ranks * chunks:
        return None
    return largest_stage(family, config, ranks, count, chunks, **undivided_sizes(step))


def _blocked(option: str, situation: Situation) -> Blocked | None:
    ranks = RANKS[option]
    if ranks == 1:
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    structure = chain(situation.family, situation.config)
    if structure.unstaged:
        return _unstaged(structure.unstaged, situation)
    if why := too_many(TOGGLE.name, ranks, situation):
        return why
    if ranks <= structure.n_blocks < ranks * stage_chunks_of(situation):
        blocks = counted(structure.n_blocks, "block")
        return Blocked(
            f"{blocks} cannot be {CHUNKS} chunks on each of {ranks} ranks",
            "Let each rank have one stage.",
            {SCHEDULE: "1f1b"},
        )
    if structure.n_blocks < ranks:
        return Blocked(
            f"{counted(structure.n_blocks, 'block')} cannot be stages on {ranks} ranks",
            "Choose fewer ranks, or a deeper model.",
        )
    rows = int(situation.configuration.settings["batch"])
    rows //= batch_ranks_of(situation)
    if rows < 2:
        return Blocked(
            f"a batch of {rows} is one micro-batch: no two stages would ever compute at a time",
            "Choose a batch of 2 at least.",
        )
    return _other_options(situation)


def _unstaged(why: str, situation: Situation) -> Blocked:
    if getattr(situation.config, "mixture_of_recursions", False):
        return Blocked(why, "Go without recursions.", {"mixture_of_recursions": "off"})
    return Blocked(why, "Choose another model, or other fields of it.")


def _other_options(situation: Situation) -> Blocked | None:
    return (
        conflict(
            situation,
            Trait.OFFLOADED,
            "what goes to the host and back is counted by call, and stages make several a step",
        )
        or conflict(
            situation,
            Trait.TILES_TUNED,
            "tiles are tuned in a complete step on one device, and no rank has one",
        )
        or captured(situation)
        or eight_bit(situation)
    )


def _apply(option: str, build: Build) -> None:
    ranks = RANKS[option]
    build.layout = build.layout._replace(pipeline=ranks)
    build.micro_batches = build.micro_batches or micro_batches_of(build.situation, ranks)


def _evidence(option: str, observed: Observed) -> Finding:
    divided = observed.divided
    pipeline = None if divided is None else divided.pipeline
    if divided is None or pipeline is None:
        return no_effect("the blocks are on one rank")
    if not pipeline.turns:
        return no_effect("no step was made by all ranks")
    text = _describe(divided, pipeline) + peaks_text(divided, on_gpu=observed.situation.on_gpu)
    if problem := _problem(divided, pipeline):
        return no_effect(f"{text}; {problem}")
    return effective(f"{text}; what the stages trained is rank 0's to the last bit")


def _describe(divided: Parallel, pipeline: Pipeline) -> str:
    """Describe what the ranks have, did and sent."""
    own, full = divided.weights.own, divided.weights.full
    assert full is not None
    first = pipeline.turns[0]
    by_stage = [
        pipeline.turns[divided.layout.first_of_stage(n)] for n in range(len(pipeline.stages))
    ]
    blocks = ", ".join(str(turns.blocks) for turns in by_stage)
    in_flight = ", ".join(str(turns.in_flight) for turns in by_stage)
    return (
        f"{blocks} blocks on {len(by_stage)} stages, which {first.forwards // pipeline.chunks} "
        f"micro-batches passed{' in two chunks each' if pipeline.chunks > 1 else ''}, "
        f"and of which these had {in_flight} in flight at most; this rank has "
        f"{size_text(own.bytes)} of {size_text(full.bytes)} of weights, and made "
        f"{counted(first.sends, 'send')} and {counted(first.receives, 'receive')} a step, "
        f"{size_text(first.bytes)} in total"
    )


def _problem(divided: Parallel, pipeline: Pipeline) -> str:
    """Return what the ranks did not do, or did in another way; empty if all is as it should be."""
    turns, count, layout = pipeline.turns, pipeline.micro_batches, divided.layout
    for rank, done in enumerate(turns):
        stage = pipeline.stages[layout.coordinates(rank).pipeline]
        if done.blocks != len(stage.blocks):
            return f"rank {rank} computed {done.blocks} of its {len(stage.blocks)} blocks"
        if (done.forwards, done.backwards) != (count * pipeline.chunks,) * 2:
            return (
                f"rank {rank} went {done.forwards} times forward and {done.backwards} times "
                f"backward, and there are {count} micro-batches"
            )
    sends, receives = sum(done.sends for done in turns), sum(done.receives for done in turns)
    boundaries = layout.pipeline * pipeline.chunks - 1
    least = 2 * boundaries * count * (layout.ranks // layout.pipeline)
    if sends != receives or sends < least:
        return f"{sends} sends and {receives} receives of all ranks, where {least} are needed"
    if divided.differing:
        return f"rank 0 has other numbers of {counted(divided.differing, 'parameter')}"
    return ""


TOGGLE = Toggle(
    name="pipeline_parallel",
    title="Pipeline parallel",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options=OPTIONS,
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="divides the blocks of the bundled families, which a model of yours need not have",
    divided_memory=of_stages,
    unpredictable=WAITING,
    kinds={"pipeline": Kind("pipeline_parallel", {})},
    traits=rank_traits(Trait.WEIGHTS_DIVIDED, Trait.OWN_REDUCTION),
)
