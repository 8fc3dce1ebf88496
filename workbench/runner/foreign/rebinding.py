"""Replacement of functions that a module's methods call, for that module alone.

A method finds its functions among the global variables of its file. A copy of the method with
other global variables calls the replacement; the file and its other users stay as they are.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from workbench.runner.foreign.patches import Patch, function_of, named_modules

Replace = Callable[[Any], Any]  # from a value to its replacement, or the same value
_LIBRARIES = ("torch", "workbench")
SDPA = "scaled_dot_product_attention"
_MODULES = (torch, torch.nn, torch.nn.functional)


class Rebinder:
    """Copies of functions, which call replacements; one copy for each function."""

    def __init__(self, replace: Replace) -> None:
        self._replace = replace
        self._replacements: dict[int, Any] = {}  # by the id of the original
        self._originals: list[Any] = []  # the references keep an id from being reused

    def patch(self, model: nn.Module, replaced: str) -> Patch:
        """Rebind the methods of all modules of a model that are not torch's own."""
        patch = Patch()
        for path, module in named_modules(model):
            if _is_of_library(type(module).__module__):
                continue
            for name in _methods(type(module)):
                function = function_of(module, name)
                if function is None:
                    continue
                rebound = self.value(function, function.__module__)
                if rebound is not function:
                    patch.replace_method(path, module, name, rebound, replaced)
        return patch

    def value(self, value: Any, caller: str) -> Any:
        """Return the replacement of a value that code of the module ``caller`` reads, or itself."""
        if id(value) in self._replacements:
            return self._replacements[id(value)]
        if not isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
            return value
        self._originals.append(value)
        self._replacements[id(value)] = value  # for functions that call themselves
        replacement = self._replace(value)
        if (
            replacement is value
            and isinstance(value, types.FunctionType)
            and _is_near(value, caller)
        ):
            replacement = self._rebound(value)
        self._replacements[id(value)] = replacement
        return replacement

    def _rebound(self, function: types.FunctionType) -> types.FunctionType:
        if _is_of_library(function.__module__ or ""):
            return function
        names, attributes, written = _names(function.__code__)
        before = function.__globals__
        # A copy has global variables of its own, so that neither writes would be seen by the other.
        if written or reads_changing_globals(function):
            return function
        changed = {}
        for name in names & before.keys():
            replacement = self.value(before[name], function.__module__)
            if replacement is before[name] and SDPA in attributes:
                replacement = self._module(replacement)
            if replacement is not before[name]:
                changed[name] = replacement
        closure = function.__closure__ or ()
        cells = [self._cell(cell, function.__module__) for cell in closure]
        if not changed and all(a is b for a, b in zip(cells, closure, strict=True)):
            return function
        # Without its name, by which torch.compile would look the original variables up.
        unchanged = {name: value for name, value in before.items() if name != "__name__"}
        replacement = types.FunctionType(
            function.__code__,
            {**unchanged, **changed},
            function.__name__,
            function.__defaults__,
            tuple(cells) or None,
        )
        replacement.__kwdefaults__ = function.__kwdefaults__
        replacement.__qualname__ = function.__qualname__
        replacement.__module__ = function.__module__
        return replacement

    def _cell(self, cell: types.CellType, caller: str) -> types.CellType:
        try:
            content = cell.cell_contents
        except ValueError:
            return cell
        if not isinstance(content, types.FunctionType):
            return cell
        replacement = self.value(content, caller)
        return cell if replacement is content else types.CellType(replacement)

    def _module(self, value: Any) -> Any:
        """Return a stand-in for torch, torch.nn or torch.nn.functional with another attention."""
        if not isinstance(value, types.ModuleType) or value not in _MODULES:
            return value
        name = {torch: "nn", torch.nn: "functional"}.get(value, SDPA)
        inner = getattr(value, name)
        replacement = self.value(inner, "") if name == SDPA else self._module(inner)
        if replacement is inner:
            return value
        stand_in = types.ModuleType(value.__name__)
        stand_in.__dict__.update({**vars(value), name: replacement})
        return stand_in


def _methods(kind: type) -> Iterable[str]:
    """Return the names of methods that a class or its bases define, those of torch left out."""
    names: dict[str, None] = {}
    for owner in kind.__mro__:
        is_near = owner.__module__ == kind.__module__ or "forward" in vars(owner)
        if is_near and not _is_of_library(owner.__module__):
            names |= {
                name: None
                for name, value in vars(owner).items()
                if isinstance(value, types.FunctionType)
                and (name == "forward" or not name.startswith("__"))
            }
    return names


def _is_near(function: types.FunctionType, caller: str) -> bool:
    """Return True for a function of the caller's file, or of a file beside it in no package."""
    module_name = function.__module__ or ""
    return module_name == caller or "." not in module_name + caller


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def reads_changing_globals(function: types.FunctionType) -> bool:
    """Return True if a function reads global variables that code of its file assigns."""
    return not _names(function.__code__)[0].isdisjoint(_written_in_file(function))


def _written_in_file(function: types.FunctionType) -> set[str]:
    """Return the global variables that functions and methods of the same file assign."""
    written: set[str] = set()
    for value in list(function.__globals__.values()):
        parts = vars(value).values() if isinstance(value, type) else [value]
        for part in parts:
            inner = part.__func__ if isinstance(part, (staticmethod, classmethod)) else part
            if isinstance(inner, (types.FunctionType, functools._lru_cache_wrapper)):
                code = getattr(inspect.unwrap(inner), "__code__", None)
                if code is not None and code.co_filename == function.__code__.co_filename:
                    written |= _names(code)[2]
    return written


@functools.cache
def _names(code: types.CodeType) -> tuple[set[str], set[str], set[str]]:
    """Return the global variables and attributes that code reads, and the globals that it assigns.

    Nested functions are included.
    """
    names: set[str] = set()
    attributes: set[str] = set()
    written: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(instruction.argval)
        elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            written.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_names, inner_attributes, inner_written = _names(constant)
            names |= inner_names
            attributes |= inner_attributes
            written |= inner_written
    return names, attributes, written
