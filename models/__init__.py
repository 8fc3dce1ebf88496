"""Model families: one per file, each ending in one ``FAMILY``; the folder is the registry.

``register`` adds a family of another package.
"""

from __future__ import annotations

import importlib
import pkgutil

from models.cache_file import SavedState
from models.cache_file import read as read_state
from models.configs.setting import ConfigField
from models.costs.footprint import Footprint, Sharding
from models.costs.model_costs import Costs
from models.decode_state import Cache
from models.errors import ConfigurationError
from models.family import Family
from models.generation import generate, pieces, prefill_in_chunks, sample
from models.language_model import BlockOutput, LanguageModel
from models.layers.adaptive.flash import AdaptiveFlashAttention
from models.model import CHECKPOINTING, Metric, Model

__all__ = [
    "CHECKPOINTING",
    "FAMILIES",
    "AdaptiveFlashAttention",
    "BlockOutput",
    "Cache",
    "ConfigField",
    "ConfigurationError",
    "Costs",
    "Family",
    "Footprint",
    "LanguageModel",
    "Metric",
    "Model",
    "SavedState",
    "Sharding",
    "generate",
    "pieces",
    "prefill_in_chunks",
    "read_state",
    "register",
    "sample",
]


FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
    """Add a family under its name.

    Raises ``ConfigurationError`` if the name is taken or a preset is invalid.
    """
    if family.name in FAMILIES:
        raise ConfigurationError(f"{family.name!r} exists already")
    for preset, config in family.presets.items():
        family.validate(config)
        family.suggested(preset, "cpu")
    FAMILIES[family.name] = family


for _module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
    if not _module.name.startswith("_"):
        _family = getattr(importlib.import_module(f"{__name__}.{_module.name}"), "FAMILY", None)
        if _family is not None:
            register(_family)
