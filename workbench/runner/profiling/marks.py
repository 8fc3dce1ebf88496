"""Marks around steps, modules and the loss, by which a trace tells whose time is whose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function

from kernels import Operator
from kernels._dispatch import watched
from models import Model
from sessions.breakdown import LOSS
from workbench.runner.profiling.trace import MODULE, OPERATOR

ROOT = "(model)"  # the model's own name, which has none among its modules


class _Ranges:
    """Opens a range before a module's forward pass and closes it after, also when it raises."""

    def __init__(self, name: str) -> None:
        self._name = f"{MODULE}{name}"
        self._open: list[record_function] = []  # a module may be called within itself

    def before(self, *_: Any) -> None:
        """A forward pre-hook."""
        opened = record_function(self._name)
        opened.__enter__()
        self._open.append(opened)

    def after(self, *_: Any) -> None:
        """A forward hook, always called."""
        self._open.pop().__exit__(None, None, None)


@contextlib.contextmanager
def modules_marked(model: Model) -> Iterator[None]:
    """Mark every call of a module, of the kernel library and of the loss.

    Not for a model that was compiled, whose code has the hooks of its compilation: it would not
    call these, or be compiled again.
    """
    with watched(_marked_operator):
        yield from _modules_marked(model)


def _marked_operator(op: Operator, impl: str, args: tuple[Any, ...]) -> Any:
    with record_function(f"{OPERATOR}{op.name}"):
        return op.implementations[impl].call(*args)


def _modules_marked(model: Model) -> Iterator[None]:
    hooks = []
    for name, module in model.named_modules():
        ranges = _Ranges(name or ROOT)
        hooks.append(module.register_forward_pre_hook(ranges.before))
        hooks.append(module.register_forward_hook(ranges.after, always_call=True))
    loss: Callable[..., torch.Tensor] = model.loss

    def marked(*batch: torch.Tensor) -> torch.Tensor:
        with record_function(f"{MODULE}{LOSS}"):
            return loss(*batch)

    nn.Module.__setattr__(model, "loss", marked)
    try:
        yield
    finally:
        del model.__dict__["loss"]
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def before_updates(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` whenever the optimizer begins to step."""
    hook = optimizer.register_step_pre_hook(lambda *_: look())
    try:
        yield
    finally:
        hook.remove()
