"""Toggles of several ranks: how they combine, and what keeps them from being used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from kernels import hardware
from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.distributed import world as worlds
from workbench.runner.distributed.mesh import Layout
from workbench.runner.toggles._toggle import Finding, Situation, effective, no_effect
from workbench.runner.toggles.compile import WITH_GRAPHS
from workbench.runner.variants.compiles import counted

if TYPE_CHECKING:
    from workbench.runner.distributed.parallel import Parallel

RANKS = {"off": 1, "2": 2, "4": 4, "8": 8}
KINDS = {  # toggles whose ranks multiply, and what they are called in a sentence
    "data_parallel": "data parallelism",
    "context_parallel": "context parallelism",
    "expert_parallel": "expert parallelism",
    "tensor_parallel": "tensor parallelism",
    "pipeline_parallel": "pipeline parallelism",
}
CHUNKS = 2  # of each rank in an interleaved pipeline
OPTIONS = {"off": "Off", "2": "2 ranks", "4": "4 ranks", "8": "8 ranks"}


def peaks_text(divided: Parallel, *, on_gpu: bool) -> str:
    """Which rank needed most memory, as a clause to append; nothing before they were compared."""
    if not any(divided.peaks):
        return ""
    most = max(divided.peaks)
    what = "peak memory" if on_gpu else "resident set"
    return f"; {what} {size_text(most)} on rank {divided.peaks.index(most)}, the most of all"


def layout_of(situation: Situation) -> Layout:
    """Return how the ranks of a situation's steps are laid out."""
    data = RANKS[situation.option("data_parallel")]
    sharding = situation.option("sharding")
    shard = {"off": 1, "hybrid": data // 2}.get(sharding, data)
    return Layout(
        pipeline=RANKS[situation.option("pipeline_parallel")],
        replicate=data // max(shard, 1),
        context=RANKS[situation.option("context_parallel")],
        expert=RANKS[situation.option("expert_parallel")],
        shard=max(shard, 1),
        tensor=RANKS[situation.option("tensor_parallel")],
    )


def chunks_of(situation: Situation) -> int:
    """Return in how many chunks each stage of a pipeline computes."""
    staged = situation.option("pipeline_parallel") != "off"
    return CHUNKS if staged and situation.option("schedule") == "interleaved" else 1


def batch_ranks_of(situation: Situation, **options: str) -> int:
    """Return how many ranks share the batch of a situation, with other ``options`` if given."""
    toggles = ("data_parallel", "expert_parallel")
    return math.prod(RANKS[options.get(name) or situation.option(name)] for name in toggles)


def too_many(toggle: str, ranks: int, situation: Situation) -> Blocked | None:
    """Return why ``ranks`` of this toggle cannot be combined with what others take of them."""
    others = [name for name in KINDS if name != toggle and situation.option(name) != "off"]
    product = math.prod(RANKS[situation.option(name)] for name in others) * ranks
    blocked = too_few(product, situation)
    if blocked is None or not others or too_few(ranks, situation) is not None:
        return blocked
    titles = " and ".join(KINDS[name] for name in others)
    return Blocked(
        f"together with {titles} it {blocked.reason}",
        f"Choose fewer ranks, or switch {titles} off.",
        dict.fromkeys(others, "off"),
    )


def too_small(batch: int, ranks: int, situation: Situation) -> Blocked | None:
    """Return why ``ranks`` cannot share a batch, whose parts are micro-batches of a pipeline."""
    if batch % ranks:
        return Blocked(
            f"a batch of {batch} cannot be divided among {ranks} ranks",
            f"Choose a batch that is a multiple of {ranks}.",
        )
    count = situation.option("micro_batches")
    if situation.option("pipeline_parallel") == "off" or count == "auto":
        return None
    if (batch // ranks) % int(count):
        return Blocked(
            f"a batch of {batch} cannot be divided among {ranks} ranks and {count} micro-batches",
            f"Choose a batch that is a multiple of {ranks * int(count)}.",
        )
    return None


def captured(situation: Situation) -> Blocked | None:
    """Why a step that is captured cannot be divided."""
    if situation.option("cuda_graphs") == "on":
        return Blocked(
            "a captured step would go on using a group of ranks that may have ended",
            "Switch CUDA graphs off.",
            {"cuda_graphs": "off"},
        )
    if (mode := situation.option("compile")) in WITH_GRAPHS:
        return Blocked(
            f"torch.compile {mode} captures CUDA graphs, whose gradients lie where the graph is",
            "Compile without them.",
            {"compile": "max-autotune-no-cudagraphs" if mode == "max-autotune" else "default"},
        )
    return None


def eight_bit(situation: Situation) -> Blocked | None:
    """Why moments in 8 bits cannot be where ranks are."""
    if situation.option("adamw").startswith("8bit"):
        return Blocked(
            "moments in 8 bits cannot be taken over by other ranks",
            "Use AdamW with whole moments.",
            {"adamw": "fused"},
        )
    return None


def too_few(ranks: int, situation: Situation) -> Blocked | None:
    """Return why there cannot be so many ranks: on this machine, or of those started outside."""
    if not dist.is_available():
        return Blocked("this torch was built without torch.distributed", "Install another build.")
    if count := worlds.size_from_outside():
        if ranks <= count:
            return None
        return Blocked(
            f"needs {ranks} ranks, and {count} were started",
            f"Start the runner with {ranks} ranks, or choose fewer.",
        )
    if situation.on_gpu:
        count, what = torch.cuda.device_count(), "GPU"
    else:
        count, what = hardware.usable_cores(), "CPU core"
    if ranks <= count:
        return None
    here = f"{count} {what}{'s' if count > 1 else ''}"
    return Blocked(
        f"needs {ranks} {what}s, and this machine has {here}",
        f"Run it on a machine with {ranks} {what}s.",
    )


def alike(divided: Parallel, text: str) -> Finding:
    """Return the finding for ranks that should have equal weights after their steps."""
    if divided.differing is None:
        return no_effect(f"{text}; no step was made by all ranks")
    if divided.differing:
        return no_effect(f"{text}; ranks differ in {counted(divided.differing, 'parameter')}")
    return effective(f"{text}; the weights of all ranks are equal to the last bit")
