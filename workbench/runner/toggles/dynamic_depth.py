"""Dynamic depth in MAHIA-X's fabric: every layer computes the samples that it scores highest.

This changes the model. With *Off: all layers* every sample passes all layers, and nothing depends
on the input. With less, a layer gathers, computes and writes back only its share of the batch.
Helps if the layers are so wide that gathering is cheap in comparison, and the batch has more than a
few samples. Counted for MAHIA-X base, 64 samples of 256 tokens: half of the batch per layer saves
0.1 % of the forward pass's FLOPs, because the fabric computes only one vector per sample.
"""

from __future__ import annotations

from typing import Any

from models.layers.neuro_fabric import chosen
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles._ranks import batch_ranks_of
from workbench.runner.toggles._toggle import Situation


def _needs(value: Any, situation: Situation) -> Blocked | None:
    batch = int(situation.configuration.settings["batch"]) // batch_ranks_of(situation)
    declared = getattr(situation.base, "capacity", value)
    if value == declared or chosen(value, batch) != chosen(declared, batch):
        return None
    return Blocked(
        f"a layer computes {chosen(value, batch)} of {counted(batch, 'sample')}, the same as with "
        f"{declared}",
        "Choose a larger batch for the next run.",
    )


TOGGLE = field_toggle(
    "capacity",
    "Dynamic depth",
    __doc__,
    {
        "all": ("Off: all layers", 1.0),
        "half": ("Half of the batch per layer", 0.5),
        "quarter": ("A quarter per layer", 0.25),
    },
    name="dynamic_depth",
    needs=_needs,
)
