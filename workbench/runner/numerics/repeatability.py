"""The mode in which a model that may draw random numbers can be compared, if there is one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from models import Model
from workbench.runner.batches import Batches
from workbench.runner.failures import explain, is_fatal, lacks_memory
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.model_state import rng
from workbench.runner.numerics.deviation import (
    rounding_of,
)
from workbench.runner.numerics.distances import distance
from workbench.runner.numerics.reference import Outputs, Plain
from workbench.runner.profiling.eager import eager
from workbench.runner.training.trainer import Parameters
from workbench.runner.user_models import global_flags
from workbench.runner.workloads import Compute

_CALLS = 8  # calls in which to look for a module that some of them skip
_MORE_CALLS = 32  # for a model that decides on the host: it may skip a module rarely
_DECISIONS = frozenset(
    getattr(torch.Tensor, name)
    for name in ("__bool__", "__float__", "__index__", "__int__", "item", "tolist")
)
ALIKE = 1e-5  # relative; atomic sums make two calls differ by less


@dataclass(frozen=True)
class CheckMode:
    """Mode in which a variant and its reference run for a check.

    ``words`` begin the text of the result. ``varies``: why a comparison is meaningless.
    ``outputs``: the plain model's in this mode, if they are known.
    """

    words: str = ""
    varies: str = ""
    outputs: Outputs | None = None


def choose_mode(
    plain: Plain, modes: contextlib.ExitStack, put_back: Callable[[], None]
) -> CheckMode:
    """Return how a model that may draw random numbers is compared.

    The variant is in that mode until ``modes`` ends.
    """
    first = plain.outputs()
    put_back()
    if not first.drew:
        return CheckMode("", _differs(plain, first, put_back), first)
    if not plain.situation.workload.trains:
        return CheckMode("", "the model draws random numbers in evaluation mode")
    if plain.variant.divided is not None:  # because the other ranks step in training mode
        why = "the model draws random numbers in training, different ones on each rank"
        return CheckMode("", why)
    with contextlib.ExitStack() as mode:
        mode.enter_context(rng.evaluating(plain.variant.model))
        mode.enter_context(plain.variant.compiles.ignoring())
        try:
            evaluated = plain.outputs()
            put_back()
            drew = "it draws random numbers there too"
            why = drew if evaluated.drew else _differs(plain, evaluated, put_back)
        except Exception as error:
            failure = explain(error)
            if is_fatal(error) or failure.kind == "out-of-memory":
                raise
            why = failure.sentence
        if why:
            drawing = "the model draws random numbers in training, and cannot be compared in"
            return CheckMode("", f"{drawing} evaluation mode: {why}")
        modes.push(mode.pop_all())
    parts = ["the model draws random numbers in training"]
    parts += ["its buffers are not updated"] if first.carries else []
    if plain.situation.has(Trait.COMPILED):
        parts.append("it was compiled once more for this")
    return CheckMode(f"in evaluation mode ({'; '.join(parts)}): ", outputs=evaluated)


def skipped_module(
    situation: Situation, weights: Parameters, batches: Batches, wrap: Callable[[Compute], Compute]
) -> str:
    """Return the name of a module with parameters that some training steps skip; else empty.

    A user's model computes the losses of some batches, in another build around its weights. There
    are more batches if it reads values of tensors on the host, or draws numbers with Python or
    numpy. It is not known, and so empty, if memory is too small for that.
    """
    model: Model = situation.family.share(situation.config, weights)
    model.train()
    ran: set[str] = set()
    names_of_calls: list[frozenset[str]] = []
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(lambda *_, name=name: ran.add(name))
    decisions = _Decisions()
    with eager(), rng.put_back(model, situation.device), global_flags.put_back(), decisions:
        rng.seed_all(situation.configuration.seed)
        drawn = rng.host_states()
        for number in range(1, _MORE_CALLS + 1):
            if number > _CALLS and not decisions.count and rng.host_states() == drawn:
                break
            ran.clear()
            batches.go_to(number)
            try:
                _compute_loss(wrap(model.loss), batches)
            except Exception as error:
                if not lacks_memory(error):
                    raise
                break
            names_of_calls.append(frozenset(ran))
    batches.rewind()
    every = frozenset().union(*names_of_calls)
    return min((n for n in every if any(n not in names for names in names_of_calls)), default="")


class _Decisions(TorchFunctionMode):
    """Counts the values of tensors that the host reads, on which a branch may depend."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count the call if it reads a value, and run it."""
        self.count += func in _DECISIONS
        return func(*args, **(kwargs or {}))


def _compute_loss(compute: Compute, batches: Batches) -> None:
    """Compute a loss, without gradients if the model can."""
    try:
        with torch.no_grad():
            compute(*batches.inputs, *batches.targets)
    except RuntimeError as error:
        if lacks_memory(error):
            raise
        compute(*batches.inputs, *batches.targets)


def _differs(plain: Plain, first: Outputs, put_back: Callable[[], None]) -> str:
    """Return why nothing can be compared if equal calls give different outputs; else empty."""
    other, variant = plain.outputs(again=True), plain.variant
    put_back()
    output_error = max(
        distance(y, x).relative_error for y, x in zip(first.all, other.all, strict=True)
    )
    loss = abs((first.loss or 0.0) - (other.loss or 0.0))
    most = max(ALIKE, *(rounding_of(variant.weights_dtype, y) for y in first.all))
    alike = output_error <= most and loss <= most * abs(first.loss or 0.0)
    if alike or not (math.isfinite(output_error) and math.isfinite(loss)):
        return ""
    return (
        "state outside buffers: two calls of the plain model on the same batch, with another batch "
        f"between them, differ by {output_error:.2g} (relative) in the outputs, {loss:.2g} in the "
        "loss"
    )
