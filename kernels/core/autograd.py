"""Autograd functions with the least host overhead, which bounds small kernels."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from kernels.core.operator import Unavailable

__all__ = [
    "absent_as_none",
    "applied",
    "are_operators",
    "as_operators",
    "needs_gradient",
    "once_differentiable",
]


class _OperatorBlocks(threading.local):
    blocks = 0


_operator_blocks = _OperatorBlocks()
_ANOTHER = (
    "choose an implementation that autograd differentiates itself, such as 'torch', or for "
    "attention 'manual'"
)


class _Unrecorded:
    """Context of a forward pass that has no backward pass: it saves nothing."""

    def save_for_backward(self, *tensors: Any) -> None:
        """Save nothing."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Do nothing: no output is differentiated."""

    def set_materialize_grads(self, value: bool) -> None:
        """Do nothing: no gradient arrives."""


def applied(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Return ``function.apply(*arguments)``; with gradients off, run its forward pass alone.

    Forward-mode derivatives still use ``apply``, which refuses them. Raises ``Unavailable``
    under ``torch.func``.
    """
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    if torch._C._are_functorch_transforms_active():
        raise Unavailable(
            f"{function.__module__}.{function.__qualname__} cannot be transformed by torch.func; "
            f"{_ANOTHER}"
        )
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return function.apply(*arguments)
    return function.forward(_Unrecorded(), *arguments)


@contextlib.contextmanager
def as_operators() -> Iterator[None]:
    """Call passes as torch operators in this thread, if they are registered as operators.

    This costs some microseconds per call. Code that watches operators, such as a checkpoint's
    policy, then sees the passes.
    """
    _operator_blocks.blocks += 1
    try:
        yield
    finally:
        _operator_blocks.blocks -= 1


def are_operators() -> bool:
    """Return True if passes must be called as torch operators, as in a compiled graph."""
    return torch.compiler.is_compiling() or _operator_blocks.blocks > 0


def absent_as_none(ctx: Any) -> None:
    """Pass None, instead of zeros, to the backward pass for an output that gets no gradient.

    While Dynamo traces, which does not know this setting, it stays zeros: a backward pass accepts
    both.
    """
    if not torch.compiler.is_compiling():
        ctx.set_materialize_grads(False)


def needs_gradient(*tensors: torch.Tensor | None) -> bool:
    """Return True if a backward pass will need the gradient of any of these tensors."""
    if not torch.is_grad_enabled():
        return False
    # No generator: Dynamo cannot trace one around a function that it inlines.
    for x in tensors:  # noqa: SIM110
        if x is not None and x.requires_grad:
            return True
    return False


class _CachingContext:
    """Context that unpacks its saved tensors once, as checkpoints require, and caches them."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    @functools.cached_property
    def saved_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """Tensors that the forward pass saved."""
        return self._ctx.saved_tensors  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse second derivatives; torch's own decorator silently treats some of them as zero.

    Torch's decorator refuses through the incoming gradients. For a penalty on the gradient of a
    sum, the incoming gradients are ones, so torch raises nothing and leaves the penalty out. This
    decorator also refuses through every saved tensor.
    """
    why = (
        f"{backward.__module__}.{backward.__qualname__} is once_differentiable and has no second "
        f"derivatives; {_ANOTHER}"
    )

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        caching_ctx = _CachingContext(ctx)
        with torch.no_grad():
            result = backward(caching_ctx, *gradients)
        parts = result if isinstance(result, tuple) else (result,)
        returned = [x for x in parts if x is not None]
        dependencies = [
            x for x in (*caching_ctx.saved_tensors, *gradients) if x is not None and x.requires_grad
        ]
        # One more input, for gradients that were saved without what they depend on.
        dependencies.append(torch.zeros((), requires_grad=True))
        refused = torch._C._functions.DelayedError(why.encode(), len(returned) + len(dependencies))
        passed = iter(refused(*returned, *dependencies))
        return tuple(None if x is None else next(passed) for x in parts)

    return run
