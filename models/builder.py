"""Interface of model builders, for modules that ``models.family`` imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from models.costs.model_costs import Costs


class ModelBuilder(Protocol):
    """Builder of a configuration's model: a ``Family``."""

    @property
    def title(self) -> str:
        """Name of the models for users."""
        ...

    @property
    def costs(self) -> Callable[[Any], Costs]:
        """Costs of a configuration's model."""
        ...

    def build(self, config: Any) -> nn.Module:
        """Build only the structure: parameters without values."""
        ...
