"""Replacements that a rule made in a model, and their reversal."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

INTERNAL = frozenset(vars(nn.Module()))
_MISSING = object()
Call = Callable[..., Any]


class NotCopyable(Exception):  # noqa: N818 - the module is left alone, which is no error
    """A module has attributes that Python cannot copy, so that no small copy of it can be tried."""


@dataclass
class Patch:
    """Replacements that one rule made in one model.

    ``sites`` are the replaced modules, by path: the class, and what was replaced if not its
    ``forward``.
    """

    sites: dict[str, str] = field(default_factory=dict)
    _undo: list[Callable[[], object]] = field(default_factory=list, repr=False)

    def replace_method(
        self, path: str, module: nn.Module, name: str, function: Call, replaced: str = ""
    ) -> None:
        """Replace a method of one module by ``function(module, ...)``."""
        self.set_attribute(vars(module), name, types.MethodType(function, module))
        self.sites[path] = f"{type(module).__name__}{replaced and f'.{replaced}'}"

    def set_attribute(self, attributes: dict[str, Any], name: str, value: object) -> None:
        """Set an entry of an object's ``__dict__``."""
        before = attributes.get(name, _MISSING)
        attributes[name] = value

        def undo() -> None:
            if before is _MISSING:
                del attributes[name]
            else:
                attributes[name] = before

        self._undo.append(undo)

    def undo(self) -> None:
        """Restore everything that this patch changed; later patches must be undone before."""
        while self._undo:
            self._undo.pop()()
        self.sites.clear()

    def summary(self) -> str:
        """Return how many modules of each class were changed."""
        counts = Counter(self.sites.values())
        return ", ".join(f"{count} {name}" for name, count in counts.items())


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield once each module that a rule may examine; TorchScript's are left out."""
    from torch.jit import ScriptModule

    for path, module in model.named_modules():
        if not isinstance(module, ScriptModule):
            yield path, module


def replace_recognized(
    model: nn.Module,
    is_candidate: Callable[[nn.Module], bool],
    recognize: Callable[[nn.Module, Call], Call | None],
) -> Patch:
    """Replace ``forward`` of every candidate for which ``recognize`` returns a function.

    It is called once for modules that are alike, with the present ``forward``.
    """
    patch, known = Patch(), dict[Any, Call | None]()
    for path, module in named_modules(model):
        forward = function_of(module, "forward")
        if forward is None or not is_candidate(module):
            continue
        key = (signature(module), id(forward))
        if key not in known:
            try:
                known[key] = recognize(module, forward)
            except NotCopyable:
                known[key] = None
        if (function := known[key]) is not None:
            patch.replace_method(path, module, "forward", function)
    return patch


def signature(module: nn.Module) -> tuple[Any, ...]:
    """Return the properties that a recognition depends on: class, attributes, sizes."""
    attributes = tuple(
        (name, _identity(value, module))
        for name, value in vars(module).items()
        if name not in INTERNAL
    )
    parameter_shapes = tuple(
        (name, None if x is None else x.shape) for name, x in module._parameters.items()
    )
    below = tuple((name, signature(child)) for name, child in module._modules.items() if child)
    return (type(module), module.training, attributes, parameter_shapes, below)


def _identity(value: Any, module: nn.Module) -> Any:
    """Return a key that is equal only for attributes that compute alike."""
    if isinstance(value, types.MethodType):  # two modules may have the same function
        owner = "self" if value.__self__ is module else id(value.__self__)
        return id(value.__func__), owner
    if isinstance(value, tuple):
        return tuple(_identity(part, module) for part in value)
    return value if isinstance(value, (int, float, str)) else id(value)


def function_of(module: nn.Module, name: str) -> types.FunctionType | None:
    """Return a module's method as a function, as an earlier patch may have left it."""
    method = vars(module).get(name)
    if isinstance(method, types.MethodType) and method.__self__ is module:
        method = method.__func__
    elif method is None:
        method = next((vars(k)[name] for k in type(module).__mro__ if name in vars(k)), None)
    return method if isinstance(method, types.FunctionType) else None
