"""Train with rounded weights, so that the model is accurate when its weights are INT8 later.

The forward pass uses weights that are rounded to INT8 (one scale per row), and the gradient ignores
the rounding. Weights, gradients and moments stay in full precision, so a step needs more time and
memory, not less: the benefit is a smaller error of the quantized model afterwards. For inference
with the trained weights choose *Quantization*, INT8 weight-only. The head, embeddings, routers,
experts and layers of odd sizes are not rounded. Counted for HYDRA base: 48 layers with 75.5 of the
114.2 million parameters are rounded. The numerical check compares with a reference that rounds the
same weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.layers.fake_quantized import (
    SCHEME,
    FakeQuantizedLinear,
    fake_quantize,
    fake_quantized,
)
from models.layers.quantized_linear import quantizable
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.distributed.local_weights import local
from workbench.runner.toggles import conflict
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
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


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    return conflict(
        situation,
        Trait.WEIGHTS_DIVIDED,
        "rounds complete weights, but each rank has only a part of them",
        "Train on one GPU, or use data parallelism.",
    )


def _apply(option: str, build: Build) -> None:
    build.transforms.append(fake_quantize)


def _evidence(option: str, observed: Observed) -> Finding:
    layers = [
        module
        for name, module in observed.model.named_modules()
        if isinstance(module, FakeQuantizedLinear) and name in observed.probe.ran
    ]
    if not layers:
        return no_effect("no linear layer used a rounded weight")
    numbers = changed = 0
    moved = length = 0.0
    for layer in layers:
        weight = local(layer.weight.detach())  # this rank's rows, if weights are sharded
        rounding_error = (fake_quantized(weight) - weight).float()
        numbers += rounding_error.numel()
        changed += int((rounding_error != 0).sum())
        moved += float(rounding_error.square().sum())
        length += float(weight.float().square().sum())
    if not changed:
        return no_effect("the rounding changed no weight")
    return effective(
        f"{counted(len(layers), 'linear layer')} used rounded weights: rounding changed "
        f"{100 * changed / numbers:.3g} % of the values, by "
        f"{100 * (moved / length) ** 0.5:.2g} % of their norm"
    )


TOGGLE = Toggle(
    name="quantized_training",
    title="Quantization-aware training",
    help=__doc__,
    group="Precision",
    stage=Stage.PRECISION,
    options={"off": "Off", "int8": "INT8 weights"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    has_modules=lambda option, model: bool(quantizable(model, SCHEME)),
    memory=lambda option, situation: {"rounded": option != "off"},
)
