"""Helpers of the toggles that use several ranks: how they combine, and what blocks them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from sessions.numbers import counted
from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.distributed import world as worlds
from workbench.runner.distributed.mesh import Layout, chunks_of
from workbench.runner.instruments.host_facts import usable_cores
from workbench.runner.toggles import conflict
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Trait,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.distributed.parallel import Parallel
    from workbench.runner.variants.build import Build

RANKS = {"off": 1, "2": 2, "4": 4, "8": 8}
DATA, CONTEXT, EXPERT = "data_parallel", "context_parallel", "expert_parallel"
TENSOR, PIPELINE = "tensor_parallel", "pipeline_parallel"
SCHEDULE, SHARDING, COMPRESSION = "schedule", "sharding", "gradient_compression"
KINDS = {  # toggles whose ranks multiply, and their names in a sentence
    DATA: "data parallelism",
    CONTEXT: "context parallelism",
    EXPERT: "expert parallelism",
    TENSOR: "tensor parallelism",
    PIPELINE: "pipeline parallelism",
}
WAITING = "how long ranks wait for each other is unknown before they run"
WAITING_STAGES = "how long pipeline stages wait for each other is unknown before they run"
_NEVER_DIVIDED = ("quantization", "sharding")
OPTIONS = {"off": "Off", "2": "2 ranks", "4": "4 ranks", "8": "8 ranks"}


def rank_traits(*traits: Trait) -> dict[str, tuple[Trait, ...]]:
    """Return the traits of a toggle of ranks by option."""
    return {option: (Trait.RANKS, *traits) for option, ranks in RANKS.items() if ranks > 1}


def peaks_text(divided: Parallel, *, on_gpu: bool) -> str:
    """Return which rank needed most memory, as a clause to append; empty before a comparison."""
    if not any(divided.peaks):
        return ""
    most = max(divided.peaks)
    quantity = "peak memory" if on_gpu else "resident set"
    return f"; highest {quantity}: {size_text(most)} on rank {divided.peaks.index(most)}"


def layout_of(situation: Situation) -> Layout:
    """Return how the ranks of a situation's steps are laid out."""
    data = RANKS[situation.option(DATA)]
    sharding = situation.option(SHARDING)
    shard = {"off": 1, "hybrid": data // 2}.get(sharding, data)
    return Layout(
        pipeline=RANKS[situation.option(PIPELINE)],
        replicate=data // max(shard, 1),
        context=RANKS[situation.option(CONTEXT)],
        expert=RANKS[situation.option(EXPERT)],
        shard=max(shard, 1),
        tensor=RANKS[situation.option(TENSOR)],
    )


def leave_graphs_unsplit(build: Build) -> None:
    """Let a step whose gradients ``DistributedDataParallel`` averages compile as on one device.

    Dynamo's split of graphs by buckets does not support Triton. Blocks that are compiled separately
    are smaller than a bucket anyway.
    """
    if build.situation.has(Trait.COMPILED):
        build.flags.append(_unsplit_graphs)


def _unsplit_graphs() -> AbstractContextManager[None]:
    import torch._dynamo

    patch: AbstractContextManager[None] = torch._dynamo.config.patch(optimize_ddp=False)
    return patch


def undivided_sizes(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a footprint without those that no sharded model supports."""
    return {name: size for name, size in step.items() if name not in _NEVER_DIVIDED}


def stage_chunks_of(situation: Situation) -> int:
    """Return the number of stages that each rank of a pipeline has."""
    return chunks_of(layout_of(situation), situation.option(SCHEDULE))


def batch_ranks_of(situation: Situation, **options: str) -> int:
    """Return how many ranks share the batch of a situation, with other ``options`` if given."""
    toggles = (DATA, EXPERT)
    return math.prod(RANKS[options.get(name) or situation.option(name)] for name in toggles)


def too_many(toggle: str, ranks: int, situation: Situation) -> Blocked | None:
    """Return why ``ranks`` of this toggle cannot be combined with the ranks of other toggles."""
    combined = [name for name in KINDS if name != toggle and situation.option(name) != "off"]
    product = math.prod(RANKS[situation.option(name)] for name in combined) * ranks
    blocked = too_few(product, situation)
    if blocked is None or not combined or too_few(ranks, situation) is not None:
        return blocked
    titles = " and ".join(KINDS[name] for name in combined)
    return Blocked(
        f"combined with {titles} it {blocked.reason}",
        f"Choose fewer ranks, or switch {titles} off.",
        dict.fromkeys(combined, "off"),
    )


def too_small(batch: int, ranks: int, situation: Situation) -> Blocked | None:
    """Return why ``ranks`` cannot share a batch, which a pipeline splits into micro-batches."""
    if batch % ranks:
        return Blocked(
            f"a batch of {batch} cannot be divided among {ranks} ranks",
            f"Choose a batch that is a multiple of {ranks}.",
        )
    count = situation.option("micro_batches")
    if situation.option(PIPELINE) == "off" or count == "auto":
        return None
    if (batch // ranks) % int(count):
        return Blocked(
            f"a batch of {batch} cannot be divided among {ranks} ranks and {count} micro-batches",
            f"Choose a batch that is a multiple of {ranks * int(count)}.",
        )
    return None


def replayed(situation: Situation) -> Blocked | None:
    """Return why what Inductor captures cannot run on several ranks."""
    return conflict(
        situation,
        Trait.REPLAYED,
        "{title} {option} captures CUDA graphs, which keep gradients in their own memory pool",
    )


def eight_bit(situation: Situation) -> Blocked | None:
    """Return why 8-bit optimizer states cannot be combined with ranks."""
    reason = "8-bit optimizer states cannot be moved to other ranks"
    return conflict(situation, Trait.EIGHT_BIT, reason)


def too_few(ranks: int, situation: Situation) -> Blocked | None:
    """Return why so many ranks cannot run on this machine, or with the ranks that were started."""
    if not dist.is_available():
        return Blocked(
            "this PyTorch was built without torch.distributed",
            "Install a PyTorch build that includes it.",
        )
    if count := worlds.size_from_outside():
        if ranks <= count:
            return None
        return Blocked(
            f"needs {ranks} ranks, but was started with {count}",
            f"Start the runner with {ranks} ranks, or choose fewer.",
        )
    if situation.on_gpu:
        count, unit = torch.cuda.device_count(), "GPU"
    else:
        count, unit = usable_cores(), "CPU core"
    if ranks <= count:
        return None
    return Blocked(
        f"needs {ranks} {unit}s; this machine has {count}",
        f"Run it on a machine with {ranks} {unit}s.",
    )


def alike(divided: Parallel, text: str) -> Finding:
    """Return the finding for ranks whose weights should be equal after their steps."""
    if divided.n_differing is None:
        return no_effect(f"{text}; no step ran on all ranks")
    if divided.n_differing:
        return no_effect(f"{text}; ranks differ in {counted(divided.n_differing, 'parameter')}")
    return effective(f"{text}; the weights of all ranks are equal to the last bit")
