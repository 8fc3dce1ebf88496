"""Probe: one small eager call that shows the dtypes of all linear layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from models import Model
from models.layers.quantized_linear import QuantizedLinear
from workbench.runner.batches import Tensors
from workbench.runner.profiling.eager import eager
from workbench.runner.profiling.quantized_parameters import guarded
from workbench.runner.structures import tensors
from workbench.runner.workloads import Compute

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # all of them linear


@dataclass(frozen=True)
class Probe:
    """Findings of one call: dtypes that linear layers returned, and names of layers that ``ran``.

    ``read``: names of quantized layers whose weight the model read, with or without a call.

    ``needs_gradients``: the model cannot be called without recording gradients, because it
    differentiates in its forward pass or in its loss.
    """

    linear_dtypes: frozenset[torch.dtype]
    ran: frozenset[str]
    needs_gradients: bool = False
    read: frozenset[str] = frozenset()


def probe(
    model: Model, inputs: Tensors, wrap: Callable[[Compute], Compute], *, is_own_model: bool
) -> Probe:
    """Run ``model`` once on few inputs in the precision of its steps, and look at linear layers.

    ``is_own_model``: the model comes from the user's file and may support only its steps. So it
    runs in their mode, with the loss if they train. Code that it compiles is not compiled here.
    """
    dtypes: dict[str, torch.dtype] = {}

    def watch(name: str, module: nn.Module) -> RemovableHandle:
        def seen(_module: nn.Module, _inputs: Any, output: Any) -> None:
            for tensor in tensors(output)[:1]:  # a class derived from it may return several
                dtypes[name] = tensor.dtype

        return module.register_forward_hook(seen)

    hooks = [
        watch(name, module)
        for name, module in model.named_modules()
        if isinstance(module, _PRODUCTS)
    ]
    quantized = {n: m for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    try:
        with guarded(quantized):
            needs_gradients = is_own_model and _call_own(model, inputs, wrap)
            if not is_own_model:
                _call_bundled(model, inputs, wrap)
    finally:
        for hook in hooks:
            hook.remove()
    read = frozenset(name for name, layer in quantized.items() if layer.was_read)
    return Probe(frozenset(dtypes.values()), frozenset(dtypes), needs_gradients, read)


def _call_bundled(model: Model, inputs: Tensors, wrap: Callable[[Compute], Compute]) -> None:
    """Call the model in evaluation mode.

    It may compile: attention by flex would hold all weights otherwise.
    """
    training = model.training
    try:
        with torch.no_grad():
            wrap(model.eval())(*inputs)
    finally:
        model.train(training)


def _call_own(model: Model, inputs: Tensors, wrap: Callable[[Compute], Compute]) -> bool:
    """Call the user's model in the mode of its steps; return True if it needs gradients."""
    compute = wrap(model.loss if model.training else model)
    with eager():
        try:
            with torch.no_grad():
                compute(*inputs)
            return False
        except RuntimeError:  # autograd's, if the model needs gradients; others come again
            if not model.training:
                raise
        compute(*inputs)
    return True
