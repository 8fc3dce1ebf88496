"""The fewest columns a head's scores may be computed with, in a basis of SVD quality.

Another model: attention of low rank, whose kernel reads and multiplies fewer columns. Which heads
go how far the adaptive rank decides by what is measured of them, so that it must be on; the basis
is refreshed as the model runs. Long sequences gain most, and the numerical check tells the price.
Counted: at least a quarter of the columns saves 3/8 of attention's products at most, 2.6 % of
AdaAttn base's forward pass at 1,024 tokens and 21 % at 16,384.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from models.adaattn import PATIENCE
from workbench.protocol import Blocked
from workbench.runner.toggles._adapting import calls, head_dim, ranks, ranks_text
from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles._toggle import Situation

if TYPE_CHECKING:
    from workbench.runner.variants.observed import Observed


def _needs(value: Any, situation: Situation) -> Blocked | None:
    if situation.config.adaptive_rank:
        return None
    return Blocked(
        "all heads compute with all columns where the rank does not adapt",
        "Let it adapt.",
        {"adaptive_rank": "on"},
    )


def _idle(value: Any, observed: Observed) -> str:
    """Say why the heads have the ranks that the model's own least rank gives; empty if not."""
    full, ratio = head_dim(observed.model), observed.situation.base.rank_ratio
    used = ranks(observed.model)
    if value < ratio and min(used) >= ratio * full:
        after = calls(observed.model, observed.situation.workload)
        return (
            f"no head has a rank below {round(ratio * full)} of {full} after {after}, which "
            f"the model's own least rank allows too: {ranks_text(observed.model)}"
        )
    return _none_would_be_narrower(value, observed) if value > ratio else ""


def _facts(value: Any, observed: Observed) -> str:
    return ranks_text(observed.model)


def _none_would_be_narrower(value: Any, observed: Observed) -> str:
    """Say that no head would give up a column without a higher least rank; empty if one would."""
    from workbench.runner.toggles import _effects as effects

    situation = observed.situation
    config = dataclasses.replace(situation.config, rank_ratio=situation.base.rank_ratio)
    model = effects.settled(observed, dataclasses.replace(situation, config=config), PATIENCE + 2)
    least = int(model.adapted()["rank_LH"].min())
    if least < value * head_dim(observed.model):
        return ""
    return f"no head would compute with fewer than {least} columns without it"


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
    idle=_idle,
    facts=_facts,
)
