"""Bytes per number of the precisions that a step may compute in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes per number: in the weights, in the linears' results, in the residual stream."""

    weight: int
    compute: int
    stream: int

    @property
    def copied(self) -> int:
        """Bytes per number of autocast's copies of weights; 0 if it makes none."""
        return self.compute if self.compute != self.weight else 0


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(weight=4, compute=4, stream=4),
    "amp": Precision(weight=4, compute=2, stream=4),
    "half": Precision(weight=2, compute=2, stream=2),
}
