"""What toggles that divide a step among ranks have in common: how many, and what keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from kernels import hardware
from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import Situation
from workbench.runner.toggles.compile import WITH_GRAPHS

if TYPE_CHECKING:
    from workbench.runner.ranks.divided import Divided

RANKS = {"off": 1, "2": 2, "4": 4, "8": 8}
OPTIONS = {"off": "Off", "2": "2 ranks", "4": "4 ranks", "8": "8 ranks"}


def peaks_text(divided: Divided, *, on_gpu: bool) -> str:
    """Which rank needed most memory, as a clause to append; nothing before they were compared."""
    if not any(divided.peaks):
        return ""
    most = max(divided.peaks)
    what = "peak memory" if on_gpu else "resident set"
    return f"; {what} {size_text(most)} on rank {divided.peaks.index(most)}, the most of all"


# Toggles that take the ranks, each for itself, and what they are called in a sentence.
_TAKE = {
    "data_parallel": "data parallelism",
    "tensor_parallel": "tensor parallelism",
    "pipeline_parallel": "pipeline parallelism",
}


def taken(toggle: str, situation: Situation) -> Blocked | None:
    """Why another of these toggles leaves no ranks to this one."""
    for name, title in _TAKE.items():
        if name != toggle and situation.option(name) != "off":
            return Blocked(
                f"{title} takes the ranks, and the two do not go together yet",
                f"Switch {title} off.",
                {name: "off"},
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
    """Why there cannot be so many ranks on this machine."""
    if not dist.is_available():
        return Blocked("this torch was built without torch.distributed", "Install another build.")
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
