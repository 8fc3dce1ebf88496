"""Model families: one per file, each ending in one ``FAMILY``; the folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil

from models._cache_file import SavedState
from models._cache_file import read as read_state
from models._costs import Costs
from models._footprint import Footprint, Sharding
from models._generate import generate, pieces, prefill_in_chunks, sample
from models.errors import ConfigurationError
from models.family import ConfigField, Family
from models.language_model import BlockOutput, Cache, LanguageModel
from models.model import CHECKPOINTING, Metric, Model

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

# Modules for other packages that are not families.
SUPPORT = frozenset(
    {
        "attention", "checkpointing", "config_fields", "cuda_graph", "errors", "family",
        "initialisation", "language_model", "model", "neuro_fabric", "pipeline_footprint",
        "pipeline_stages", "quantized_linear", "ssm", "tensor_parallel_footprint",
        "tensor_parallel_plan",
    }
)  # fmt: skip


def _discover() -> dict[str, Family]:
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    names = sorted(name for name in modules if name[0] != "_" and name not in SUPPORT)
    families = [importlib.import_module(f"models.{name}").FAMILY for name in names]
    return {family.name: family for family in families}


FAMILIES: dict[str, Family] = _discover()
