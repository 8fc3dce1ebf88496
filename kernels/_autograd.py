"""Autograd functions at the least cost on the host, which small kernels are bound by."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd import function as torch_function

__all__ = ["absent_as_none", "applied", "needs_gradient", "once_differentiable"]


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

    Forward-mode derivatives and function transforms go on through ``apply``, which knows them.
    """
    if (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    ):
        return function.apply(*arguments)
    return function.forward(_Unrecorded(), *arguments)


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


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """torch's, which is entered only where second derivatives are asked for.

    Otherwise gradients are off in a backward pass already, and torch's would switch them off again.
    """
    guarded = torch_function.once_differentiable(backward)

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            return guarded(ctx, *gradients)
        return backward(ctx, *gradients)

    return run
