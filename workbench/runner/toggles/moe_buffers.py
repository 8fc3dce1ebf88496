"""Compute all expert layers in one workspace that is allocated once.

The MoE document requires this. In inference the workspace holds the order of the router's choices,
the rows of the experts, their hidden activations and the output. A training step needs these until
its backward pass, and ``torch.compile`` plans memory itself. PyTorch's allocator mostly returns the
same memory anyway, so the workspace only saves host time: it helps if steps are short and no CUDA
graph is replayed. Counted for MoE base, 8 x 1,024 tokens in BF16 with the Triton kernels: 63 MB
replace 96 allocations per pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kernels
from models import Model
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._kernel_toggle import TITLES, chosen_implementation, is_measured
from workbench.runner.toggles._residual import needs_inference
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


_IN_WORKSPACE = ("triton", "loop")  # implementations that support a workspace


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if why := not_called("moe_experts", situation) or needs_inference(True, situation):
        return why
    implementation = chosen_implementation("moe_experts", situation)
    if implementation in _IN_WORKSPACE or (implementation == "torch" and not situation.on_gpu):
        return None
    if situation.on_gpu:
        fix, option = "Choose MoE experts: Triton.", "triton"
    else:
        fix, option = "Choose MoE experts: Loop over experts.", "loop"
    title = TITLES.get(implementation, implementation)
    reason = f"MoE experts by {title} allocate new memory in each call"
    if is_measured("moe_experts", situation):
        reason = "the fastest implementation of MoE experts may allocate new memory in each call"
    return Blocked(reason, fix, {"triton_moe_experts": option})


def _apply(option: str, build: Build) -> None:
    def share(model: Model) -> None:
        workspace = kernels.Workspace()
        for module in model.modules():
            if hasattr(module, "workspace"):
                module.workspace = workspace

    build.transforms.append(share)


def _evidence(option: str, observed: Observed) -> Finding:
    workspaces = [getattr(module, "workspace", None) for module in observed.model.modules()]
    layers = [workspace for workspace in workspaces if workspace is not None]
    if not layers:
        return no_effect("no expert layer has a workspace")
    requests, allocations = layers[0].requests, layers[0].allocations
    # Calls beside the steps are not compiled, and use the workspace too.
    if observed.situation.has(Trait.COMPILED) and not observed.record.workspace_tensors:
        return no_effect("no step used the workspace: torch.compile plans memory itself")
    if requests <= allocations:
        return no_effect(
            f"{counted(requests, 'tensor')} used {counted(allocations, 'allocation')}: "
            "no memory was reused"
        )
    return effective(
        f"{counted(len(layers), 'layer')} placed {counted(requests, 'tensor')} so far in "
        f"{counted(allocations, 'allocation')}, "
        f"{layers[0].bytes / 1e6:.3g} MB in total"
    )


TOGGLE = Toggle(
    name="moe_buffers",
    title="Pre-allocated MoE buffers",
    help=__doc__,
    group="Memory",
    stage=Stage.MEMORY,
    options={"off": "Off", "on": "On"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="needs the expert layers of the bundled families, which your own model does not have",
)
