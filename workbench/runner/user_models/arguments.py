"""The arguments that the ``forward`` of a user's module takes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Arguments:
    """Names of arguments that keywords can pass, and of those that have no default.

    ``takes_any``: it takes ``**kwargs``.
    """

    names: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    takes_any: bool = False

    @classmethod
    def of(cls, module: nn.Module) -> Arguments:
        """Return the arguments of a module; none where Python does not know them."""
        try:
            parameters = inspect.signature(module.forward).parameters.values()
        except (TypeError, ValueError):
            return cls()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        kinds = {p.kind for p in parameters}
        return cls(
            frozenset(p.name for p in named),
            frozenset(p.name for p in named if p.default is p.empty),
            inspect.Parameter.VAR_KEYWORD in kinds
            and inspect.Parameter.POSITIONAL_ONLY not in kinds,
        )

    def are_in(self, value: Any) -> bool:
        """Return True for a dict that can be passed as keyword arguments."""
        if not isinstance(value, dict):
            return False
        return self.names.issuperset(value) or (
            self.takes_any
            and all(isinstance(key, str) for key in value)
            and self.required.issubset(value)
        )
