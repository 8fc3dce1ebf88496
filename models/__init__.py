"""Model families: one per file, each ending in one ``FAMILY``; the folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil

from models._cache_file import SavedState
from models._cache_file import read as read_state
from models._costs import Costs
from models._family import ConfigField, Family
from models._footprint import Footprint, Sharding
from models._generate import generate, pieces, prefill_in_chunks, sample
from models._language_model import BlockOutput, Cache, LanguageModel
from models._mistake import ConfigurationError
from models._model import CHECKPOINTING, Metric, Model

__all__ = [
    "CHECKPOINTING",
    "FAMILIES",
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
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    families = [importlib.import_module(f"models.{name}").FAMILY for name in names]
    return {family.name: family for family in families}


FAMILIES: dict[str, Family] = _discover()
