"""The variables in which the user's model may keep state: buffers, attributes, globals, cells."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from workbench.runner.user_models.user_model import OwnModel

_INTERNAL = frozenset(vars(nn.Module()))
CODE = (types.FunctionType, types.MethodType, types.ModuleType, type, nn.Module)
_WRAPPERS = (property, staticmethod, classmethod, types.GetSetDescriptorType)
MISSING = object()


@dataclass(frozen=True)
class Variable:
    """One variable that a model may keep state in, and how to set it."""

    value: Any
    set: Callable[[Any], object]
    is_buffer: bool = False


def roots(model: OwnModel) -> list[tuple[str, Any]]:
    """Return the objects that a model's code can reach, with names, for ``run_state``."""
    named = [("the module", model.module), ("loss", model.own_loss)]
    return [*named, *((source.file, source.names) for source in model.sources)]


def variables(model: OwnModel) -> dict[str, Variable]:
    """Return the variables that may hold state, by names that a fresh build has too.

    They are buffers and attributes of modules, global variables of the user's files, attributes of
    their classes, and variables that functions enclose.
    """
    variables_by_name: dict[str, Variable] = {}
    functions = [model.own_loss] if model.own_loss is not None else []
    classes: dict[type, None] = {}  # in order of appearance
    for path, module in model.module.named_modules():
        prefix = f"{path}." if path else ""
        classes[type(module)] = None
        for name, value in module._buffers.items():
            setting = _setting(module._buffers, name)
            variables_by_name[f"{prefix}{name}"] = Variable(value, setting, is_buffer=True)
        for name, value in vars(module).items():
            if isinstance(value, types.FunctionType):
                functions.append(value)
            elif name not in _INTERNAL and not isinstance(value, CODE):
                variables_by_name[f"{prefix}{name}"] = Variable(value, _setting(vars(module), name))
    for source in model.sources:
        for name, value in source.names.items():
            if name.startswith("__"):
                continue
            if isinstance(value, type) and value.__module__ == source.names.get("__name__"):
                classes[value] = None
            elif isinstance(value, types.FunctionType):
                functions.append(value)
            elif not isinstance(value, CODE):
                key, setting = f"{source.file}: {name}", _setting(source.names, name)
                variables_by_name[key] = Variable(value, setting)
    for owner in classes:
        if owner.__module__.partition(".")[0] == "torch":
            continue
        for name, value in vars(owner).items():
            if isinstance(value, types.FunctionType):
                functions.append(value)
            elif not name.startswith("__") and not isinstance(value, (*CODE, *_WRAPPERS)):
                key, setting = f"{owner.__qualname__}.{name}", _of_class(owner, name)
                variables_by_name[key] = Variable(value, setting)
    return variables_by_name | _enclosed_variables(functions)


def _enclosed_variables(functions: Iterable[Callable[..., Any]]) -> dict[str, Variable]:
    """Return the variables in the closures of functions."""
    return {
        f"{function.__qualname__}: {name}": Variable(value, _of_cell(cell))
        for function in functions
        for name, cell in _cells(function)
        if (value := _content(cell)) is not MISSING and not isinstance(value, CODE)
    }


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


def _setting(container: Any, name: str) -> Callable[[Any], object]:
    return lambda value: container.__setitem__(name, value)


def _of_class(owner: type, name: str) -> Callable[[Any], object]:
    return lambda value: setattr(owner, name, value)


def _of_cell(cell: types.CellType) -> Callable[[Any], object]:
    return lambda value: setattr(cell, "cell_contents", value)
