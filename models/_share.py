"""The share of a sequence that a part of a model computes, in whole numbers.

A share must be the same number of tokens on the host, which decides shapes by it, and on the
device, which decides by it who is admitted: floating-point numbers would not always agree.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, TypeVar

from torch import Tensor

Count = TypeVar("Count", int, Tensor)


class Share(NamedTuple):
    """``part / whole`` of the tokens, rounded up."""

    part: int
    whole: int

    @staticmethod
    def nearest(value: float) -> Share:
        """The share nearest to ``value`` (above 0) with a denominator up to a million.

        So decimals of six places and thirds are exact, which floating-point numbers are not.
        """
        exact = Fraction(value).limit_denominator(1_000_000)
        return Share(exact.numerator, exact.denominator)

    def times(self, other: Share) -> Share:
        """That share of this share."""
        return Share(self.part * other.part, self.whole * other.whole)

    def of(self, count: Count) -> Count:
        """How many of ``count`` tokens: a number, or an integer tensor of any shape."""
        return (count * self.part + self.whole - 1) // self.whole

    def slots(self, length: int) -> int:
        """Places in a cache for ``length`` positions; one more than tokens where some are left out.

        There, a call of fixed shape also writes what does not count, past all that does.
        """
        return length if self.part == self.whole or length == 0 else self.of(length) + 1


ALL = Share(1, 1)
