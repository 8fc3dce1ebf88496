"""Fraction of a sequence's tokens that a part of a model computes, in whole numbers.

It must give the same number of tokens on the host, where it decides shapes, and on the device,
where it decides which tokens are admitted: floating-point numbers would not always agree.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, TypeVar

from torch import Tensor

Count = TypeVar("Count", int, Tensor)


class TokenFraction(NamedTuple):
    """``numerator / denominator`` of the tokens, rounded up."""

    numerator: int
    denominator: int

    @staticmethod
    def nearest(value: float) -> TokenFraction:
        """Return the fraction nearest to ``value`` (above 0) with a denominator up to a million.

        So decimals of six places and thirds are exact, which floating-point numbers are not.
        """
        exact = Fraction(value).limit_denominator(1_000_000)
        return TokenFraction(exact.numerator, exact.denominator)

    def times(self, other: TokenFraction) -> TokenFraction:
        """Return the product of two fractions."""
        return TokenFraction(self.numerator * other.numerator, self.denominator * other.denominator)

    def of(self, count: Count) -> Count:
        """Return the fraction of ``count``: a number, or an integer tensor of any shape."""
        return (count * self.numerator + self.denominator - 1) // self.denominator

    def slots(self, length: int) -> int:
        """Return the slots of a cache for ``length`` positions; one extra if tokens are left out.

        The extra slot takes tokens that do not count, which a call of fixed shape also writes.
        """
        if self.numerator == self.denominator or length == 0:
            return length
        return self.of(length) + 1


ALL_TOKENS = TokenFraction(1, 1)
