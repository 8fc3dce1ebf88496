"""Which kernel computes attention: chosen automatically, or one backend by name.

``auto`` takes the fastest that fits the call and says why; a named backend that cannot run is an
error, never a silent fallback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    if reason is None:
        return None
    return Blocked(reason, "Choose Automatic, or see `workbench doctor` for what would enable it.")


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
