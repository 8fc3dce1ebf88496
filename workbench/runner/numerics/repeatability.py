"""The mode in which a model that may draw random numbers can be compared, if there is one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from workbench.runner.failures import explain, is_fatal
from workbench.runner.interfaces import Trait
from workbench.runner.model_state import rng
from workbench.runner.numerics.deviation import (
    rounding_of,
)
from workbench.runner.numerics.distances import distance
from workbench.runner.numerics.reference import Outputs, Plain

ALIKE = 1e-5  # relative; atomic sums make two calls differ by less


@dataclass(frozen=True)
class CheckMode:
    """Mode in which a variant and its reference run for a check.

    ``words`` begin the text of the result. ``varies``: why a comparison is meaningless.
    """

    words: str
    varies: str = ""


def choose_mode(
    plain: Plain, modes: contextlib.ExitStack, put_back: Callable[[], None]
) -> CheckMode:
    """Return how a model that may draw random numbers is compared.

    The variant is in that mode until ``modes`` ends.
    """
    first = plain.outputs()
    put_back()
    if not first.drew:
        return CheckMode("", _differs(plain, first, put_back))
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
    return CheckMode(f"in evaluation mode ({'; '.join(parts)}): ")


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
