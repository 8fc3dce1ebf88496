"""How few columns a head's scores may be computed with, in a basis of SVD quality.

Another model: attention of low rank, whose kernel reads and multiplies fewer columns. Which heads
go how far the adaptive rank decides by what is measured of them, so that it must be on; the basis
is refreshed as the model runs. Long sequences gain most, and the numerical check tells the price.
Counted: at least a quarter of the columns saves 3/8 of attention's products at most, 2.6 % of
AdaAttn base's forward pass at 1,024 tokens and 21 % at 16,384.
"""

from __future__ import annotations

from typing import Any

from workbench.protocol import Blocked
from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles._toggle import Situation


def _needs(value: Any, situation: Situation) -> Blocked | None:
    if situation.config.adaptive_rank:
        return None
    return Blocked(
        "all heads compute with all columns where the rank does not adapt",
        "Let it adapt.",
        {"adaptive_rank": "on"},
    )


TOGGLE = field_toggle(
    "rank_ratio",
    "Low rank",
    __doc__,
    {
        "quarter": ("At least a quarter", 0.25),
        "half": ("At least half", 0.5),
        "all": ("All columns", 1.0),
    },
    name="low_rank",
    needs=_needs,
)
