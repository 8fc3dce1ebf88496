"""Profiler ranges around steps, modules and the loss, by which a trace attributes time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function

from kernels import Operator, watched
from models import Model
from models.language_model import ENTRIES, LanguageModel
from sessions.studies.breakdown import LOSS
from sessions.tracing.trace import MODULE, OPERATOR, ROOT

_BESIDE_FORWARD = (*(name for name in ENTRIES if name != "forward"), "fused")  # no hook sees them


class _Ranges:
    """A module's range, opened before its forward pass and closed after it, even if it raises."""

    def __init__(self, name: str) -> None:
        self._name = f"{MODULE}{name}"
        self._open: list[record_function] = []  # a stack, because a module may call itself

    def before(self, *_: Any) -> None:
        """Open the range (a forward pre-hook)."""
        opened = record_function(self._name)
        opened.__enter__()
        self._open.append(opened)

    def after(self, *_: Any) -> None:
        """Close the range (a forward hook that is always called)."""
        self._open.pop().__exit__(None, None, None)


@contextlib.contextmanager
def modules_marked(model: Model) -> Iterator[None]:
    """Mark every call of a module, of the kernel library and of the loss.

    A compiled model needs another function: its code contains the hooks of its compilation, so it
    would ignore these hooks or be compiled again.
    """
    with watched(_marked_operator):
        yield from _modules_marked(model)


@contextlib.contextmanager
def blocks_marked(
    model: Model, blocks: Sequence[nn.Module], beside: Iterable[str]
) -> Iterator[None]:
    """Mark calls of modules and of the loss when each of ``blocks`` was compiled separately.

    A block is marked around its compiled methods; nothing inside it is marked, and none of the
    modules ``beside`` blocks, which other compiled methods call.
    """
    methods = [(block, name, block.__dict__[name]) for block in blocks
               for name in ENTRIES if name in block.__dict__]  # fmt: skip
    names = {id(module): name for name, module in model.named_modules()}
    for block, method, compiled in methods:
        block.__dict__[method] = _within(f"{MODULE}{names[id(block)]}", compiled)
    apart = [*blocks, *filter(None, (getattr(model, name, None) for name in beside))]
    try:
        yield from _modules_marked(
            model, {id(part) for module in apart for part in module.modules()}
        )
    finally:
        for block, method, compiled in methods:
            block.__dict__[method] = compiled


def _within(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return call(*args, **kwargs)

    return marked


def _marked_operator(op: Operator, impl: str, args: tuple[Any, ...]) -> Any:
    with record_function(f"{OPERATOR}{op.name}"):
        return op.implementations[impl].call(*args)


def _modules_marked(model: Model, skipped: Collection[int] = ()) -> Iterator[None]:
    hooks = []
    replaced: list[tuple[nn.Module, str]] = []
    beside_forward = _BESIDE_FORWARD if isinstance(model, LanguageModel) else ()
    for name, module in model.named_modules():
        if id(module) in skipped:
            continue
        ranges = _Ranges(name or ROOT)
        hooks.append(module.register_forward_pre_hook(ranges.before))
        hooks.append(module.register_forward_hook(ranges.after, always_call=True))
        replaced += [(module, method) for method in beside_forward if hasattr(module, method)]
    names = {id(module): f"{MODULE}{name}" for name, module in model.named_modules()}
    for module, method in replaced:
        module.__dict__[method] = _within(names[id(module)], getattr(module, method))
    replaced.append((model, "loss"))
    model.__dict__["loss"] = _within(f"{MODULE}{LOSS}", model.loss)
    try:
        yield
    finally:
        for module, method in replaced:
            del module.__dict__[method]
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def before_updates(
    optimizer: torch.optim.Optimizer, callback: Callable[[], None]
) -> Iterator[None]:
    """Call ``callback`` whenever a step of the optimizer begins."""
    hook = optimizer.register_step_pre_hook(lambda *_: callback())
    try:
        yield
    finally:
        hook.remove()
