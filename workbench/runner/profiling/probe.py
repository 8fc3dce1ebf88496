"""Probe: one small eager forward pass that shows the dtypes of all linear layers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from models import Model
from workbench.runner.batches import Tensors
from workbench.runner.profiling.eager import eager
from workbench.runner.workloads import Compute

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # all of them linear


@dataclass(frozen=True)
class Probe:
    """``linear_dtypes``: what linear layers returned; ``ran``: the names of those layers."""

    linear_dtypes: frozenset[torch.dtype]
    ran: frozenset[str]


def probe(
    model: Model, inputs: Tensors, wrap: Callable[[Compute], Compute], *, compiles_itself: bool
) -> Probe:
    """Run ``model`` once on few inputs in the precision of its steps, and look at linear layers.

    ``compiles_itself``: the model may compile parts of itself, if it comes from the user's own
    file; nothing is compiled here.
    """
    dtypes: dict[str, torch.dtype] = {}

    def watch(name: str, module: nn.Module) -> RemovableHandle:
        def seen(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            dtypes[name] = output.dtype

        return module.register_forward_hook(seen)

    hooks = [
        watch(name, module)
        for name, module in model.named_modules()
        if isinstance(module, _PRODUCTS)
    ]
    training = model.training
    # Of the bundled models, attention by flex would hold all weights if it were not compiled.
    alone = eager() if compiles_itself else contextlib.nullcontext()
    try:
        with torch.no_grad(), alone:
            wrap(model.eval())(*inputs)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return Probe(frozenset(dtypes.values()), frozenset(dtypes))
