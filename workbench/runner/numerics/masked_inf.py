"""Infinities and NaN that belong to a model: the plain model has them at the same positions.

An example is the infinity of a mask. Any other infinity or NaN is an error.
"""

from __future__ import annotations

import torch

from workbench.runner.failures import is_fatal
from workbench.runner.numerics.isolation import undisturbed
from workbench.runner.numerics.outputs import measurable
from workbench.runner.numerics.reference import Plain
from workbench.runner.variants.variant import Variant

Counts = tuple[float, float, float]  # counts of NaN, infinite and negatively infinite outputs


def count(outputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the ``Counts`` of all outputs together, on their device."""
    kinds = ("isnan", "isposinf", "isneginf")
    return torch.stack([sum(getattr(y, kind)().sum() for y in outputs) for kind in kinds]).double()


def expected(variant: Variant, batch: int) -> Counts | None:
    """Return the counts of a variant's correct outputs for ``batch``; None if they are wrong.

    The variant makes one step and the reference one pass; the variant's batch is then restored.
    """
    batches = variant.batches
    advances = batches.advances
    try:
        with undisturbed(variant) as put_back:
            batches.go_to(batch + 1)
            actual = [y.clone() for y in measurable(variant.step())]
            nan, positive, negative = count(actual).tolist()
            put_back()
            batches.go_to(batch + 1)
            reference = (
                Plain(variant, variant.situation, variant.plain_weights()).reference()[0].all
            )
    except Exception as error:
        if is_fatal(error):
            raise
        return None
    finally:
        batches.go_to(advances)
    if [y.shape for y in actual] != [exact.shape for exact in reference]:
        return None
    for y, exact in zip(actual, reference, strict=True):
        alike = (y == exact) | (y.isnan() & exact.isnan())
        if bool((~y.isfinite() & ~alike).any()) or bool(y.isnan().all()):
            return None
    return nan, positive, negative
