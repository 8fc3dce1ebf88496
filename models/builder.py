"""Interface of what builds a model, for modules that ``models.family`` itself imports."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn


class ModelBuilder(Protocol):
    """Builder of a configuration's model: a ``Family``."""

    @property
    def title(self) -> str:
        """Name of the models for users."""
        ...

    def build(self, config: Any) -> nn.Module:
        """Build only the structure: parameters without values."""
        ...
