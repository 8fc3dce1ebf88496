"""Depth of a sample in MAHIA-X's fabric: every layer takes the share that it scores highest.

Another model: at a share of 1 every sample runs through all layers, and nothing depends on the
input; below it, a layer gathers, computes and puts back only its share. Pays where the layers are
wide enough that gathering is cheap beside them, and the batch is more than a few samples. Counted
for MAHIA-X base, 64 samples of 256 tokens: half of the batch a layer saves 0.1 % of the forward
pass's FLOPs, as the fabric works on one vector a sample.
"""

from __future__ import annotations

from typing import Any

from models.layers.neuro_fabric import chosen
from workbench.protocol import Blocked
from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles._toggle import Situation


def _needs(value: Any, situation: Situation) -> Blocked | None:
    batch = int(situation.configuration.settings["batch"])
    own = getattr(situation.base, "capacity", value)
    if value == own or chosen(value, batch) != chosen(own, batch):
        return None
    return Blocked(
        f"of a batch of {batch} a layer takes {chosen(value, batch)} by this share as by {own}",
        "Choose a larger batch for the next run.",
    )


TOGGLE = field_toggle(
    "capacity",
    "Dynamic depth",
    __doc__,
    {
        "all": ("Off: all layers", 1.0),
        "half": ("Half of the batch a layer", 0.5),
        "quarter": ("A quarter", 0.25),
    },
    name="dynamic_depth",
    needs=_needs,
)
