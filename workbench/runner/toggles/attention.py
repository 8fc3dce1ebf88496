"""Which kernel computes attention: chosen automatically, or one backend by name.

``auto`` takes the fastest that fits the call and says why; a named backend that cannot run is an
error, never a silent fallback.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels
from workbench.protocol import Blocked
from workbench.runner.toggles._kernel_toggle import usage_finding
from workbench.runner.toggles._toggle import OPERATORS, Finding, Situation, Stage, Toggle

if TYPE_CHECKING:
    from workbench.runner.arm import Arm, Build

_TITLES = {
    "manual": "Manual (S x S matrix)",
    "chunked": "Chunked, memory-efficient",
    "sdpa_math": "SDPA math",
    "sdpa_flash": "SDPA flash",
    "sdpa_efficient": "SDPA memory-efficient",
    "sdpa_cudnn": "SDPA cuDNN",
    "sdpa": "SDPA, torch's choice",
    "flex": "FlexAttention",
    "xformers": "xFormers",
    "flash2": "FlashAttention 2",
    "flash3": "FlashAttention 3",
    "flash4": "FlashAttention 4",
    "triton": "Triton (bundled)",
}


def _options() -> dict[str, str]:
    backends = [name for name in kernels.OPS["attention"].implementations if name != "auto"]
    return {"auto": "Automatic"} | {name: _TITLES.get(name, name) for name in backends}


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "auto":
        return None
    reason = kernels.OPS["attention"].unavailable(option, situation.device.type)
    if reason is not None:
        fix = "Choose Automatic, or see `workbench doctor` for what would enable it."
        return Blocked(reason, fix)
    workload = situation.workload
    reason = _refuses(option, situation.device.type, workload.trains, workload.decodes)
    return Blocked(reason, "Choose Automatic or another backend.") if reason else None


@functools.cache
def _refuses(option: str, device_type: str, trains: bool, decodes: bool) -> str | None:
    """Why a backend cannot do what a workload asks: gradients, or one token against a cache.

    Asked with tensors that have no memory: the answer must not disturb what runs on the GPU.
    """
    implementation = kernels.OPS["attention"].implementation(option)
    if implementation.refuses is None:
        return None
    with FakeTensorMode():
        q, k = (
            torch.empty(
                *(1, 1, length, 64), dtype=torch.bfloat16, device=device_type, requires_grad=trains
            )
            for length in (1 if decodes else 8, 8)
        )
        length = torch.empty((), dtype=torch.int64, device=device_type) if decodes else None
        return implementation.refuses(q, k, k, True, None, None, length)


def _apply(option: str, build: Build) -> None:
    build.choose_kernel("attention", option)


def _evidence(option: str, arm: Arm) -> Finding:
    return usage_finding("attention", option, arm)


TOGGLE = Toggle(
    name="attention",
    title="Attention backend",
    help=__doc__,
    group="Attention",
    stage=Stage.ATTENTION,
    options=_options(),
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled=OPERATORS,
)
