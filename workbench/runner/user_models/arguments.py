"""The arguments that the ``forward`` of a user's module takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from workbench.runner.failures import Mistake


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

    def call(self, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        """Return the module's output; a dict of its parameters is passed as keywords.

        Raises ``Mistake`` for an iterator: a step that reads none of it would compute nothing.
        """
        if len(inputs) == 1 and self.are_in(inputs[0]):
            output = module(**inputs[0])
        else:
            output = module(*inputs)
        if isinstance(output, Iterator):
            raise Mistake(
                f"own: the module returned a {type(output).__name__}, which computes nothing until "
                "it is read; return a list or a tuple"
            )
        return output

    def are_in(self, value: Any) -> bool:
        """Return True for a dict that can be passed as keyword arguments."""
        if not isinstance(value, dict):
            return False
        return self.names.issuperset(value) or (
            self.takes_any
            and all(isinstance(key, str) for key in value)
            and self.required.issubset(value)
        )
