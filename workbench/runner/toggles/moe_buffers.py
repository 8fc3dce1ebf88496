"""Compute all layers of experts in one workspace that is allocated once, as the MoE document asks.

The order of the choices, the rows of the experts, their hidden activations and the output lie there
in inference; a training step needs them until its backward pass, and ``torch.compile`` plans memory
itself. PyTorch's allocator mostly hands out the same memory anyway, so that what is saved is the
host's time: it pays where steps are short and no CUDA graph is replayed. Counted for MoE base, 8 x
1,024 tokens in BF16 with the Triton kernels: 63 MB serve what are 96 allocations of a pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kernels
from models import Model
from workbench.protocol import Blocked
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._kernel_toggle import TITLES, chosen_implementation
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


_IN_WORKSPACE = ("triton", "loop")  # implementations that take a workspace


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if why := not_called("moe_experts", situation) or needs_inference(True, situation):
        return why
    own = chosen_implementation("moe_experts", situation)
    if own in _IN_WORKSPACE or (own == "torch" and not situation.on_gpu):
        return None
    if situation.on_gpu:
        fix, option = "Let Triton compute the experts.", "triton"
    else:
        fix, option = "Let the loop over experts compute them.", "loop"
    way = f"{TITLES.get(own, own)}: experts are computed in memory that each call allocates"
    return Blocked(way, fix, {"triton_moe_experts": option})


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
        return no_effect("no layer of experts has a workspace")
    requests, allocations = layers[0].requests, layers[0].allocations
    if requests <= allocations:
        if observed.situation.has(Trait.COMPILED):
            return no_effect("nothing was computed there: torch.compile plans its memory itself")
        return no_effect(
            f"{requests} tensors were taken from {allocations} allocations: none was reused"
        )
    return effective(
        f"{len(layers)} layers took {requests:,} tensors so far from {allocations} allocations, "
        f"{layers[0].bytes / 1e6:.3g} MB in all"
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
    bundled="acts on the layers of experts of the bundled families, which yours has not",
)
