"""The variables in which the user's model may keep state: buffers, attributes, globals, cells."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.runner.structures import slots
from workbench.runner.user_models.user_model import OwnModel

_INTERNAL = frozenset(vars(nn.Module()))
CODE = (types.FunctionType, types.MethodType, types.ModuleType, type, nn.Module)
FUNCTION_CACHE = functools._lru_cache_wrapper
_WRAPPERS = (property, staticmethod, classmethod, types.GetSetDescriptorType)
_CONSTANTS = (*CODE, Tensor, str, bytes, int, float, complex, type(None), torch.dtype, torch.device)
MISSING = object()


@dataclass(frozen=True)
class Variable:
    """One variable that a model may keep state in, and how to set it."""

    value: Any
    set: Callable[[Any], object]
    is_buffer: bool = False
    is_cache: bool = False  # the cache of a function; ``value`` has its objects that may hold state


def roots(model: OwnModel) -> list[tuple[str, Any]]:
    """Return the objects that a model's code can reach, with names, for ``run_state``."""
    named = [("the module", model.module), ("loss", model.own_loss)]
    return [*named, *((source.file, source.names) for source in model.sources)]


def variables(model: OwnModel) -> dict[str, Variable]:
    """Return the variables that may hold state, by names that a fresh build has too.

    They are buffers and attributes of modules and of a loss object, global variables of the user's
    files, attributes of their classes and functions, and variables that functions enclose.
    """
    search = _Search()
    search.add_modules(model)
    search.add_files(model)
    search.add_classes()
    search.add_functions()
    return search.variables


class _Search:
    """Collects variables; ``functions`` and ``classes`` are those whose own are to be added."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.functions: list[types.FunctionType] = []
        self.classes: dict[type, None] = {}  # in order of appearance

    def add(self, name: str, value: Any, setting: Callable[[Any], object]) -> None:
        """Add one variable, or the function that it holds."""
        while name in self.variables:  # several functions or classes have this name
            name += "'"
        if isinstance(value, FUNCTION_CACHE):
            content = list(filter(_may_hold_state, cached_values(value)))
            self.variables[name] = Variable(content, setting, is_cache=True)
            value = value.__wrapped__
        if isinstance(value, types.FunctionType):
            self.functions.append(value)
        elif not isinstance(value, (*CODE, *_WRAPPERS)):
            self.variables[name] = Variable(value, setting)

    def add_modules(self, model: OwnModel) -> None:
        """Add buffers and attributes of the modules and of the loss."""
        loss = getattr(model.own_loss, "__self__", model.own_loss)  # the object of a method
        self.add("loss", getattr(model.own_loss, "__func__", model.own_loss), _ignore)
        modules = {module: path for path, module in model.module.named_modules()}
        if isinstance(loss, nn.Module):
            modules = {m: f"loss.{path}".rstrip(".") for path, m in loss.named_modules()} | modules
        elif loss is not None and not isinstance(loss, CODE):
            self._add_attributes("loss.", loss)
        for module, path in modules.items():
            prefix = f"{path}." if path else ""
            for name, value in module._buffers.items():
                setting = _setting(module._buffers, name)
                self.variables[f"{prefix}{name}"] = Variable(value, setting, is_buffer=True)
            self._add_attributes(prefix, module)

    def _add_attributes(self, prefix: str, owner: object) -> None:
        self.classes[type(owner)] = None
        for name, value in attributes(owner).items():
            if not isinstance(owner, nn.Module) or not _is_of_torch(name):
                setting = functools.partial(object.__setattr__, owner, name)
                self.add(f"{prefix}{name}", value, setting)

    def add_files(self, model: OwnModel) -> None:
        """Add the global variables of the user's files."""
        for source in model.sources:
            for name, value in source.names.items():
                if name.startswith("__"):
                    continue
                if isinstance(value, type) and value.__module__ == source.names.get("__name__"):
                    self.classes[value] = None
                else:
                    self.add(f"{source.file}: {name}", value, _setting(source.names, name))

    def add_classes(self) -> None:
        """Add attributes of the classes, except those of torch."""
        for owner in self.classes:
            if owner.__module__.partition(".")[0] == "torch":
                continue
            for name, value in vars(owner).items():
                if isinstance(value, types.FunctionType) or not name.startswith("__"):
                    self.add(f"{owner.__qualname__}.{name}", value, _of_class(owner, name))

    def add_functions(self) -> None:
        """Add what functions enclose, their attributes and their mutable default arguments."""
        visited: set[int] = set()
        for function in self.functions:  # grows in the loop: a closure holds a decorated function
            if id(function) in visited or (function.__module__ or "").startswith("torch."):
                continue
            visited.add(id(function))
            path = function.__qualname__
            for name, cell in _cells(function):
                if (value := _content(cell)) is not MISSING:
                    self.add(f"{path}: {name}", value, _of_cell(cell))
            for name, value in vars(function).items():
                if not name.startswith("__"):
                    self.add(f"{path}.{name}", value, _setting(vars(function), name))
            for index, value in enumerate(function.__defaults__ or ()):
                if _may_hold_state(value):
                    setting = functools.partial(_set_default, function, index)
                    self.add(f"{path}: default {index}", value, setting)


def _is_of_torch(name: str) -> bool:
    """Return True for an attribute that torch gives a module: its own, or its state for FSDP."""
    return name in _INTERNAL or name.startswith("__composable_api_")


def cached_values(function: Any) -> list[Any]:
    """Return the results, and the arguments, that a ``functools.lru_cache`` holds."""
    referents = [x for x in gc.get_referents(function) if x is not vars(function)]
    if function.cache_parameters()["maxsize"] is None:
        return [result for table in referents if type(table) is dict for result in table.values()]
    return [x for x in referents if type(x) is not object and not _is_table(x)]


def _is_table(value: Any) -> bool:
    """Return True for the table of a bounded cache, which links to its results."""
    return type(value) is dict and all(
        type(link).__name__ == "_lru_list_elem" for link in value.values()
    )


def _may_hold_state(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_may_hold_state, value))
    return not isinstance(value, _CONSTANTS)


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in ``__slots__`` too."""
    named = getattr(value, "__dict__", None)
    own = dict(named) if isinstance(named, dict) else {}
    return own | slots(value)


def add_variable(model: OwnModel, name: str, value: Any) -> bool:
    """Set a variable that the fresh build does not have yet."""
    file, colon, short = name.rpartition(": ")
    if colon:
        for source in model.sources:
            if source.file == file:
                source.names[short] = value
                return True
        return False
    path, _, short = name.rpartition(".")
    loss = getattr(model.own_loss, "__self__", model.own_loss)
    if path == "loss" and isinstance(getattr(loss, "__dict__", None), dict):
        vars(loss)[short] = value
        return True
    try:
        owner = model.module.get_submodule(path)
    except AttributeError:
        return False
    vars(owner)[short] = value
    return True


def _cells(function: Callable[..., Any]) -> Iterator[tuple[str, types.CellType]]:
    inner = getattr(function, "__func__", function)
    if isinstance(inner, types.FunctionType):
        yield from zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _ignore(value: Any) -> None:
    """Leave a function as the file defines it."""


def _setting(container: Any, name: str) -> Callable[[Any], object]:
    return lambda value: container.__setitem__(name, value)


def _set_default(function: types.FunctionType, index: int, value: Any) -> None:
    defaults = list(function.__defaults__ or ())
    defaults[index] = value
    function.__defaults__ = tuple(defaults)


def _of_class(owner: type, name: str) -> Callable[[Any], object]:
    return lambda value: setattr(owner, name, value)


def _of_cell(cell: types.CellType) -> Callable[[Any], object]:
    return lambda value: setattr(cell, "cell_contents", value)
