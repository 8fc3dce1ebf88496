"""Distribute the blocks over several GPUs as stages; micro-batches pass one stage after another.

As in GPipe (Huang et al., arXiv 1811.06965), the first rank has the embedding and the first blocks,
and the last rank has the last blocks, the head and the loss. Each batch is split by its rows.
Neighbours send the residual stream forward and its gradient backward. There is one update per
batch, the same as without stages. The default schedule is one forward, one backward (1F1B,
PipeDream-Flush as in Narayanan et al., arXiv 2104.04473): with p stages and m micro-batches every
rank waits for (p - 1) / (m + p - 1) of a step. Helps if a step does not fit on one GPU, or if links
are too slow for other kinds of parallelism. Counted for HYDRA base training (8 x 1,024 tokens), two
ranks, 8 micro-batches: each rank has 0.67 of weights, gradients and moments, and waits for 0.11 of
the step. It sends 24 MiB of residual stream or gradients per step, and 147 MiB once: the gradient
of the embedding, which is also the head. The last rank, with the head, computes more.

torch.distributed.pipelining runs the schedule. Losses of a stage's own blocks are added to the
gradient of its output. The first GPU also keeps the full weights and moments, from which other
configurations continue; if a rank fails, they have their values from before these steps. Live
metrics cover all stages, as means over the micro-batches. Without a GPU the ranks share the CPU:
this shows whether results are correct, not how fast several GPUs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import Footprint
from models.parallel.pipeline_footprint import largest_stage
from models.parallel.pipeline_stages import chain
from sessions.numbers import counted
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
    eight_bit,
    peaks_text,
    rank_traits,
    replayed,
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
from workbench.runner.toggles.micro_batches import in_flight_text, micro_batches_of
from workbench.runner.toggles.tensor_parallel import sharding_of

if TYPE_CHECKING:
    from workbench.runner.distributed.parallel import Parallel
    from workbench.runner.distributed.pipeline import Pipeline
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def pipeline_ranks_of(situation: Situation) -> int:
    """Return the number of ranks that the blocks of the situation's model are distributed over."""
    return RANKS[situation.option(TOGGLE.name)]


def of_stages(situation: Situation, step: dict[str, Any]) -> Footprint | None:
    """Return the footprint of the rank that needs most memory; None without stages.

    ``step`` holds the arguments of ``models``' footprints.
    """
    ranks, family, config = pipeline_ranks_of(situation), situation.family, situation.config
    if ranks == 1 or not situation.workload.trains or chain(family, config).n_blocks < ranks:
        return None
    count = micro_batches_of(situation, ranks)
    chunks = stage_chunks_of(situation)
    if chain(family, config).n_blocks < ranks * chunks:
        return None
    tensor_ranks, along = sharding_of(situation)
    schedule = situation.option(SCHEDULE)
    return largest_stage(
        family,
        config,
        ranks,
        count,
        chunks,
        tensor_ranks=tensor_ranks,
        along_sequence=along,
        weights_apart=schedule == "zero_bubble",
        # With fewer micro-batches than stages 1F1B has no steady state, and GPipe runs.
        all_forward=chunks == 1 and (schedule == "gpipe" or count < ranks),
        **undivided_sizes(step),
    )


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
            f"{blocks} cannot form {CHUNKS} stages on each of {ranks} ranks",
            "Choose a schedule with one stage per rank.",
            {SCHEDULE: "1f1b"},
        )
    if structure.n_blocks < ranks:
        return Blocked(
            f"{counted(structure.n_blocks, 'block')} cannot form {ranks} stages",
            "Choose fewer ranks, or a deeper model.",
        )
    rows = int(situation.configuration.settings["batch"])
    rows //= batch_ranks_of(situation)
    if rows < 2:
        return Blocked(
            f"a batch of {rows} is a single micro-batch, so stages could never run concurrently",
            "Choose a batch of at least 2.",
        )
    return _other_options(situation)


def _unstaged(why: str, situation: Situation) -> Blocked:
    if getattr(situation.config, "mixture_of_recursions", False):
        return Blocked(why, "Choose Mixture of recursions: Off.", {"mixture_of_recursions": "off"})
    return Blocked(why, "Choose another model, or change its fields.")


def _other_options(situation: Situation) -> Blocked | None:
    return (
        conflict(
            situation,
            Trait.OFFLOADED,
            "{title} counts the tensors of one call per step, but stages make several calls",
        )
        or conflict(
            situation,
            Trait.TILES_TUNED,
            "tiles are tuned in a complete step on one device, but no rank runs a complete step",
        )
        or replayed(situation)
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
        return no_effect("all blocks are on one rank")
    if not pipeline.step_counts:
        return no_effect("no step ran on all ranks")
    text = _describe(divided, pipeline) + peaks_text(divided, on_gpu=observed.situation.on_gpu)
    if problem := _problem(divided, pipeline):
        return no_effect(f"{text}; {problem}")
    return effective(
        f"{text}; the trained weights of all stages are equal to rank 0's to the last bit"
    )


def _describe(divided: Parallel, pipeline: Pipeline) -> str:
    """Describe what the ranks hold, computed and sent."""
    local_weights, full = divided.weights.own, divided.weights.full_weights
    assert full is not None
    first = pipeline.step_counts[0]
    by_stage = [
        pipeline.step_counts[divided.layout.first_of_stage(n)] for n in range(len(pipeline.stages))
    ]
    blocks = ", ".join(str(counts.blocks) for counts in by_stage)
    in_flight = in_flight_text(pipeline, (counts.in_flight for counts in by_stage))
    in_two_stages = ", in two stages each" if pipeline.chunks > 1 else ""
    return (
        f"blocks by pipeline rank: {blocks}{in_two_stages}; "
        f"{counted(first.forwards // pipeline.chunks, 'micro-batch')}, {in_flight}; this rank has "
        f"{size_text(local_weights.bytes)} of {size_text(full.bytes)} of weights, and "
        f"{counted(first.sends, 'send')} and {counted(first.receives, 'receive')} per step, "
        f"{size_text(first.bytes)} in total"
    )


def _problem(divided: Parallel, pipeline: Pipeline) -> str:
    """Return what the ranks did wrong; empty if everything is correct."""
    count, layout = pipeline.micro_batches, divided.layout
    for rank, counts in enumerate(pipeline.step_counts):
        stage = pipeline.stages[layout.coordinates(rank).pipeline]
        if counts.blocks != len(stage.blocks):
            return (
                f"rank {rank} computed {counts.blocks} of its {counted(len(stage.blocks), 'block')}"
            )
        if (counts.forwards, counts.backwards) != (count * pipeline.chunks,) * 2:
            return (
                f"rank {rank} ran {counted(counts.forwards, 'forward pass')} and "
                f"{counted(counts.backwards, 'backward pass')} for {counted(count, 'micro-batch')}"
            )
    sends = sum(counts.sends for counts in pipeline.step_counts)
    receives = sum(counts.receives for counts in pipeline.step_counts)
    boundaries = layout.pipeline * pipeline.chunks - 1
    least = 2 * boundaries * count * (layout.ranks // layout.pipeline)
    if sends != receives or sends < least:
        return f"all ranks sent {sends} and received {receives} times, but {least} are needed"
    if divided.n_differing:
        return f"rank 0 has different values of {counted(divided.n_differing, 'parameter')}"
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
    bundled="distributes blocks of the bundled families; your own model may not have blocks",
    divided_memory=of_stages,
    unpredictable=WAITING,
    kinds={"pipeline": Kind("pipeline_parallel", {})},
    traits=rank_traits(Trait.WEIGHTS_DIVIDED, Trait.OWN_REDUCTION),
)
