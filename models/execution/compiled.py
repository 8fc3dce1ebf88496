"""Compilation that either happens or raises an error, which names the fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.errors import ConfigurationError

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class CompilationFailed(RuntimeError):  # noqa: N818
    """A model could not be compiled: one sentence with the reason and the fallback."""


def compiled(
    model: nn.Module,
    forward: Callable[..., Tensor],
    example: tuple[Tensor, ...],
    mode: str,
    backend: str | Callable[..., Any],
) -> Callable[..., Tensor]:
    """Compile ``forward`` as one graph, and prove it by a call on ``example``.

    With gradients on, the backward pass is compiled too. ``forward`` must have a code object that
    nothing else compiles. Raises ``ConfigurationError`` for an unknown mode, ``CompilationFailed``
    if anything goes wrong or nothing was compiled.
    """
    if mode not in MODES:
        raise ConfigurationError(
            f"torch.compile: unknown mode {mode!r}; expected one of {', '.join(MODES)}"
        )
    fallback = "the model is unchanged: call it to run without compilation"
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    try:
        # Full graphs only: otherwise Dynamo may leave out what fails, and run it uncompiled.
        function = torch.compile(forward, mode=mode, backend=backend, fullgraph=True)
        result = function(*example)
        if result.requires_grad:
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            torch.autograd.grad(result.sum(), trained, allow_unused=True)
    except Exception as error:
        reason = " ".join(str(error).strip().partition("\n\n")[0].split())
        raise CompilationFailed(
            f"torch.compile: mode {mode!r} failed with {type(error).__name__}: {reason}; {fallback}"
        ) from error
    if torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs:
        raise CompilationFailed(
            f"torch.compile: mode {mode!r} compiled nothing, because compilation is switched off "
            f"in this process; {fallback}"
        )
    return function
