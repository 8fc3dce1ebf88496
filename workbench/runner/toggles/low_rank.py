"""The smallest number of columns with which the scores of a head may be computed.

This changes the model: attention has a low rank, and its kernel reads and multiplies fewer columns,
in a basis of SVD quality. Adaptive rank must be on: it measures each head and decides how many
columns it uses. The basis is updated while the model runs. Long sequences gain most; the numerical
check shows the error. Counted: with at least a quarter of the columns, at most 3/8 of attention's
products is saved, which is 2.6 % of AdaAttn base's forward pass at 1,024 tokens and 21 % at 16,384.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from models.adaattn import PATIENCE
from sessions.numbers import counted
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
        "needs adaptive rank, which is off",
        "Choose Adaptive rank: On.",
        {"adaptive_rank": "on"},
    )


def _idle(value: Any, observed: Observed) -> str:
    """Return why the heads have the ranks that the model's default gives; empty if they differ."""
    full, ratio = head_dim(observed.model), observed.situation.base.rank_ratio
    used = ranks(observed.model)
    if value < ratio and min(used) >= ratio * full:
        after = calls(observed.model, observed.situation.workload)
        return (
            f"no head has a rank below {round(ratio * full)} of {full} after {after}, which is the "
            f"lowest rank that the model allows by default: {ranks_text(observed.model)}"
        )
    return _none_would_be_narrower(value, observed) if value > ratio else ""


def _facts(value: Any, observed: Observed) -> str:
    return ranks_text(observed.model)


def _none_would_be_narrower(value: Any, observed: Observed) -> str:
    """Return that no head would use fewer columns without this option; empty if one would."""
    from workbench.runner.toggles import _effects as effects

    situation = observed.situation
    config = dataclasses.replace(situation.config, rank_ratio=situation.base.rank_ratio)
    model = effects.settled(observed, dataclasses.replace(situation, config=config), PATIENCE + 2)
    least = int(model.adapted()["rank_LH"].min())
    if least < value * head_dim(observed.model):
        return ""
    return f"without this option no head would compute with fewer than {counted(least, 'column')}"


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
