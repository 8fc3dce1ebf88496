"""Autograd functions at the least cost on the host, which small kernels are bound by."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from kernels._operator import Unavailable

__all__ = [
    "absent_as_none",
    "applied",
    "are_operators",
    "as_operators",
    "needs_gradient",
    "once_differentiable",
]


class _Asked(threading.local):
    blocks = 0


_asked = _Asked()
_ANOTHER = (
    "choose an implementation that autograd differentiates itself, such as 'torch', or for "
    "attention 'manual'"
)


class _Unrecorded:
    """What a forward pass may do with its context, where nothing will come back for it."""

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep nothing."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Nothing here is differentiated."""

    def set_materialize_grads(self, value: bool) -> None:
        """No gradient comes."""


def applied(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply(*arguments)``, and its forward pass alone where gradients are off.

    Forward-mode derivatives go on through ``apply``, which refuses them. Raises ``Unavailable``
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
    """Let passes that are operators of torch too be called as such, in this thread.

    It costs some microseconds a call; what watches operators, as a checkpoint's policy does, sees
    them then.
    """
    _asked.blocks += 1
    try:
        yield
    finally:
        _asked.blocks -= 1


def are_operators() -> bool:
    """Whether such passes are to be called as operators of torch, as they are in a graph."""
    return torch.compiler.is_compiling() or _asked.blocks > 0


def absent_as_none(ctx: Any) -> None:
    """Let a gradient that an output does not get be None in the backward pass, instead of zeros.

    While Dynamo traces, which does not know of this, it stays zeros: a backward pass takes both.
    """
    if not torch.compiler.is_compiling():
        ctx.set_materialize_grads(False)


def needs_gradient(*tensors: torch.Tensor | None) -> bool:
    """Whether a backward pass will ask for the gradient of one of these."""
    if not torch.is_grad_enabled():
        return False
    # No generator: Dynamo cannot trace one around a function that it inlines.
    for x in tensors:  # noqa: SIM110
        if x is not None and x.requires_grad:
            return True
    return False


class _Seen:
    """A context whose saved tensors are unpacked once, as checkpoints allow, and known then."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    @functools.cached_property
    def saved_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """What the forward pass saved."""
        return self._ctx.saved_tensors  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse second derivatives, of which torch's own takes some for zero.

    Torch's refuses those by way of the gradients that come in, so that of a penalty on the slopes
    of a sum, where ones come in, it says nothing and leaves the penalty out. Here all that was
    saved is a way there, too.
    """
    why = (
        f"{backward.__module__}.{backward.__qualname__} is once_differentiable and has no second "
        f"derivatives; {_ANOTHER}"
    )

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        seen = _Seen(ctx)
        with torch.no_grad():
            found = backward(seen, *gradients)
        parts = found if isinstance(found, tuple) else (found,)
        given = [x for x in parts if x is not None]
        ways = [x for x in (*seen.saved_tensors, *gradients) if x is not None and x.requires_grad]
        # One more, for what saved gradients and not what they came of.
        ways.append(torch.zeros((), requires_grad=True))
        refused = torch._C._functions.DelayedError(why.encode(), len(given) + len(ways))
        passed = iter(refused(*given, *ways))
        return tuple(None if x is None else next(passed) for x in parts)

    return run
