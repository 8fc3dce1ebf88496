"""Model families: one per file, each ending in one ``FAMILY``; the folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil

from models.cache_file import SavedState
from models.cache_file import read as read_state
from models.costs.footprint import Footprint, Sharding
from models.costs.model_costs import Costs
from models.errors import ConfigurationError
from models.family import ConfigField, Family
from models.generation import generate, pieces, prefill_in_chunks, sample
from models.language_model import BlockOutput, Cache, LanguageModel
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
    "sample",
]


def _discover() -> dict[str, Family]:
    names = [name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_")]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in sorted(names)]
    families: list[Family] = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in families}


FAMILIES: dict[str, Family] = _discover()

from models.layers.adaptive_flash import AdaptiveFlashAttention  # noqa: E402 - it is made of a family's
