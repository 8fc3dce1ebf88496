"""The deviation of a variant's outputs and loss from the reference's, and how large it may be.

An output may be off by ``SLACK`` times the error of the plain model in the variant's precision, and
one rounding of its dtype. If the reference has only that precision, which hides the plain model's
error, the effect of one rounding of every weight is added to it. Choices that rounding decides, and
promises of a model that adapts, increase the tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from models.layers.quantized_linear import QuantizedLinear, expected_error
from models.model import Promise
from workbench.runner.numerics import training_curve
from workbench.runner.numerics.distances import Distance, distance
from workbench.runner.numerics.layer_errors import LayerError
from workbench.runner.numerics.reference import Outputs, Plain
from workbench.runner.numerics.routing_ties import Nudge, Nudges
from workbench.runner.numerics.structure_check import StructureError

SLACK = 2.0  # times the error of the plain model in the same precision
TIED = " where rounding decides between two choices"
USEFUL = 0.5  # a larger relative error would let zeros pass, or a missing part


@dataclass
class Deviation:
    """The deviation of one output and the loss, and how large it may be.

    ``which`` names one of several outputs. ``promise`` is that of a model that has adapted.
    ``tied`` says that choices which rounding decides explain a larger error.
    """

    distance: Distance
    which: str
    tolerance: float
    promise: Promise | None
    output_index: int = 0  # index of the output with that distance
    layer: LayerError | StructureError | None = None
    skipped: tuple[str, ...] = ()  # checks of single layers that were skipped, and why
    difference: float | None = None  # difference of the losses; None without losses
    bound: float = 0.0  # largest allowed difference of the losses
    tied: str = ""
    nan: str = ""  # how many numbers of the reference are NaN, in words

    @property
    def fits(self) -> bool:
        """True if every error is within its bound; an error that is not finite never is."""
        loss_error = abs(self.difference or 0.0)
        near = self.distance.relative_error <= self.tolerance and loss_error <= self.bound
        return near and self.layer is None

    @property
    def means_nothing(self) -> bool:
        """True if the errors fit, but the tolerance would also accept plainly wrong outputs."""
        return self.fits and self.tolerance > USEFUL

    @property
    def hides_layers(self) -> bool:
        """True if the errors fit, but no check could look for an error of a single layer."""
        return self.fits and len(self.skipped) == 2

    def widen(self, nudges: Nudges) -> None:
        """Widen the bounds by the effect of choices that rounding decides."""
        farther, loss = nudges.reach
        self.tied = TIED if farther else ""
        self.layer = None if farther else self.layer
        self.tolerance, self.bound = self.tolerance + SLACK * farther, self.bound + SLACK * loss

    def text(self) -> str:
        """Return a description of the deviation."""
        if not math.isfinite(self.distance.relative_error):
            return "some outputs are not finite"
        text = f"relative error {self.distance.relative_error:.2g}{self.which}"
        text += f", at most {self.tolerance:.2g} expected"
        if self.promise is not None:
            text += f" of {self.promise.text}"
        text += self.tied
        if self.difference is not None:
            text += f"; loss differs by {self.difference:+.2g}, at most {self.bound:.2g} expected"
        if self.nan:
            text += f"; {self.nan}, in the reference too"
        if self.layer is not None:
            text += f"; {self.layer.text}"
        return "; ".join((text, *self.skipped))


def other_shapes(actual: Outputs, reference: Outputs) -> str:
    """Return a clause on outputs whose shapes differ from the reference's; empty if equal."""
    own_shapes, shapes = ([tuple(y.shape) for y in outputs.all] for outputs in (actual, reference))
    if own_shapes == shapes:
        return ""
    words = [", ".join(map(str, shapes_of)) for shapes_of in (own_shapes, shapes)]
    return f"outputs have shape {words[0]}, expected {words[1]}"


def find_deviation(
    model: Plain, name: str, actual: Outputs, plain: Outputs, reference: Outputs
) -> tuple[Deviation, Nudges]:
    """Return the deviation of the worst output, and nudges that may explain a part of it."""
    variant = model.variant
    errors, least = _distances(actual, reference), _distances(plain, reference)
    output_index, which = _worst(variant.weights_dtype, actual, errors, least)
    rounding = rounding_of(variant.weights_dtype, actual.all[output_index])
    tolerance = SLACK * least[output_index].relative_error + rounding
    nudges = _nudges(model, reference, name, rounding, tolerance, output_index)
    if torch.finfo(getattr(torch, name)).eps >= rounding:
        tolerance += SLACK * nudges.nearest
        nudges = replace(nudges, aim=tolerance)
    if variant.quantization:
        rounded = distance(
            model.outputs(quantized=False).all[output_index], reference.all[output_index]
        )
        plain_error = SLACK * rounded.relative_error + rounding
        named = variant.model.named_modules()
        used = variant.probe.ran | variant.probe.read  # a weight that is read is rounded, too
        layers = [n for n, m in named if isinstance(m, QuantizedLinear) and n in used]
        most = _most(variant.quantization, len(layers), rounding)
        tolerance = min(tolerance, max(plain_error, most))
    promise = plain.promise
    if promise is not None and promise.relative_error > 0:
        still = model.outputs(adapted=False)
        unmoved = distance(still.all[output_index], reference.all[output_index])
        most = SLACK * unmoved.relative_error + rounding + promise.relative_error
        tolerance = min(tolerance, most)
    else:
        promise = None
    outcome = Deviation(errors[output_index], which, tolerance, promise, output_index)
    if count := sum(int(exact.isnan().sum()) for exact in reference.all):
        outcome.nan = f"{count:,} of {sum(y.numel() for y in reference.all):,} numbers are NaN"
    if actual.loss is not None and reference.loss is not None and plain.loss is not None:
        outcome.difference = actual.loss - reference.loss
        outcome.bound = _loss_bound(plain, reference, least)
    return outcome, nudges


def _most(scheme: str, layers: int, rounding: float) -> float:
    """Return the largest error of so many quantized layers by the scheme's definition."""
    return SLACK * expected_error(scheme, layers) + rounding * (1 + layers) ** 0.5


def rounding_of(weights_dtype: torch.dtype, values: torch.Tensor) -> float:
    """Return one rounding of the output's dtype, or of the weights' if that is coarser."""
    return max(torch.finfo(values.dtype).eps, torch.finfo(weights_dtype).eps)


def _distances(outputs: Outputs, reference: Outputs) -> list[Distance]:
    """Return the distance of each output."""
    return [distance(y, exact) for y, exact in zip(outputs.all, reference.all, strict=True)]


def _worst(
    weights_dtype: torch.dtype, actual: Outputs, errors: list[Distance], least: list[Distance]
) -> tuple[int, str]:
    """Return the output with the largest error relative to its bound, and its description.

    ``least`` are the plain model's distances.
    """
    if not actual.several:
        return 0, ""

    def share(index: int) -> float:
        tolerance = SLACK * least[index].relative_error + rounding_of(
            weights_dtype, actual.all[index]
        )
        part = errors[index].relative_error / tolerance
        return part if math.isfinite(part) else math.inf

    index = max(range(len(actual.several)), key=share)
    return index, f" in output {index + 1} of {len(actual.several)}"


def is_ruined(actual: Outputs, reference: Outputs) -> bool:
    """Return True if an output is NaN, or infinite unlike the reference: not by random numbers."""
    return any(
        bool(values.isnan().any()) or bool(values.isinf().any() and not exact.isinf().any())
        for values, exact in zip(actual.all, reference.all, strict=True)
    )


def _loss_bound(plain: Outputs, reference: Outputs, least: list[Distance]) -> float:
    """Return how far the loss may be off: by the plain model's error and its scatter.

    A loss is a mean over rows, and errors of the outputs scatter over these rows.
    """
    assert plain.loss is not None and reference.loss is not None
    rows = [values.numel() // (values.shape[-1] if values.ndim else 1) for values in plain.all]
    scatter = max(math.sqrt(error.mse / count) for error, count in zip(least, rows, strict=True))
    loss_error = abs(plain.loss - reference.loss)
    return (
        SLACK * loss_error
        + training_curve.SCATTER * scatter
        + training_curve.rounding(reference.loss, reference.largest)
    )


def _nudges(
    plain: Plain, reference: Outputs, name: str, rounding: float, aim: float, output_index: int
) -> Nudges:
    """Return nudged references; a nudge is as large as the allowed rounding errors of a variant."""

    def moved(nudge: Nudge) -> tuple[float, float]:
        outputs = plain.moved(getattr(torch, name), nudge)
        relative = distance(outputs.all[output_index], reference.all[output_index]).relative_error
        return relative, abs((outputs.loss or 0.0) - (reference.loss or 0.0))

    return Nudges(moved, rounding, aim)
