"""A marked step: one small eager forward pass that shows which number formats really compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from models import Model
from workbench.runner.data import Tensors
from workbench.runner.workloads import Compute

_SIZE = 256
_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # all of them linear


@dataclass(frozen=True)
class Probe:
    """``linear_dtypes``: what linear layers returned; ``matmul_error``: of a float32 product,
    relative to FP64.
    """

    linear_dtypes: frozenset[torch.dtype]
    matmul_error: float


def probe(model: Model, inputs: Tensors, wrap: Callable[[Compute], Compute]) -> Probe:
    """Run ``model`` once on few inputs as its arm would, and look at every linear layer."""
    dtypes: set[torch.dtype] = set()
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: dtypes.add(output.dtype))
        for module in model.modules()
        if isinstance(module, _PRODUCTS)
    ]
    training = model.training
    try:
        with torch.no_grad():
            wrap(model.eval())(*inputs)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return Probe(frozenset(dtypes), _matmul_error(inputs[0].device))


def _matmul_error(device: torch.device) -> float:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, _SIZE, _SIZE, generator=generator, dtype=torch.float64)
    exact = left.float().double() @ right.float().double()
    computed = (left.float().to(device) @ right.float().to(device)).double().cpu()
    return float((computed - exact).norm() / exact.norm())
