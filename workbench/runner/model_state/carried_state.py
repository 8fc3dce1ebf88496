"""State of the user's model beside its weights: collected, compared, and copied to a reference.

The state of a model is the difference between it and a fresh build: buffers, attributes of modules,
global and class variables of its files, and variables of closures. What equals the fresh
build is a constant, which a reference takes from its own build, in its own precision. What steps
have produced is carried over. A table that is computed in the first call is a constant too: it is
the same after any batch and with any weights, and the reference's own calls compute it.
"""

from __future__ import annotations

import collections
import contextvars
import copy
import enum
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from workbench.runner.model_state.run_state import are_same
from workbench.runner.model_state.variables import (
    CODE,
    MISSING,
    Variable,
    add_variable,
    attributes,
    variables,
)
from workbench.runner.structures import kind, of_type, tensors
from workbench.runner.user_models.user_model import OwnModel


class NotCarried(Exception):  # noqa: N818 - a reason, not an error
    """State that no reference can start from; the text is a clause that names it."""


@dataclass(frozen=True)
class Carried:
    """The variables of a variant's model that its steps have changed.

    ``built`` are those of a fresh build in FP32. ``constants`` are names whose value the reference
    computes by itself. ``unclear`` are names that may be state or not.
    """

    changed: Mapping[str, Any]
    built: Mapping[str, Variable]
    constants: Mapping[str, Any]
    unclear: tuple[str, ...]
    parameters: Mapping[int, str] = field(default_factory=dict)  # names by address

    def put_into(self, model: OwnModel, dtype: torch.dtype | None) -> None:
        """Let a fresh build continue from this state, in ``dtype`` or in the variant's precision.

        Raises ``NotCarried``.
        """
        fresh_variables = variables(model)
        classes = {
            value.__qualname__: value
            for source in model.sources
            for value in source.names.values()
            if isinstance(value, type)
        }
        parameters = dict(model.named_parameters(remove_duplicate=False))
        aliases = {i: parameters[name] for i, name in self.parameters.items() if name in parameters}
        for name, value in self.changed.items():
            if name in self.constants and dtype is not None:
                value = self.constants[name]
            fresh = fresh_variables.get(name)
            carried = _portable(name, value, fresh and fresh.value, dtype, classes, aliases)
            if fresh is not None:
                carried = self._with_constants(name, carried, value, fresh, dtype)
                fresh.set(carried)
            elif not add_variable(model, name, carried):
                raise NotCarried(f"{name} was created in a step")

    def _with_constants(
        self, name: str, carried: Any, value: Any, fresh: Variable, dtype: torch.dtype | None
    ) -> Any:
        """Take elements of a tensor that no step has changed from the fresh build."""
        built = self.built[name].value if name in self.built else None
        if dtype is None or not _is_float(built) or not _is_float(value):
            return carried
        if built.shape != value.shape or not isinstance(fresh.value, Tensor):
            return carried
        same = _as_in_variant(self.built[name], value.dtype).to(value.device) == value
        return torch.where(same, built.to(carried.device, carried.dtype), carried)


@dataclass(frozen=True)
class Remembered:
    """The state of a variant's model, and constants among its parameters as the file gives them."""

    carried: Carried
    exact: Mapping[str, Tensor] = field(default_factory=dict)


def find(model: OwnModel, fresh_model: OwnModel, dtype: torch.dtype) -> dict[str, Any]:
    """Return the variables of a model, in ``dtype``, that differ from a fresh FP32 build.

    A reference to a parameter differs if it is to another one, not if the numbers are others.
    """
    differing = {}
    fresh = variables(fresh_model)
    names = {**parameter_names(fresh_model), **parameter_names(model)}
    for name, variable in variables(model).items():
        other = fresh.get(name)
        expected = MISSING if other is None else _in_variant(other, dtype)
        if not same_values(variable.value, expected, names=names):
            if variable.is_cache:
                raise NotCarried(f"{name} caches objects, which cannot be copied")
            differing[name] = variable.value
    return differing


def parameter_names(model: OwnModel) -> dict[int, str]:
    """Return the names of a model's parameters, by address."""
    return {id(tensor): name for name, tensor in model.named_parameters()}


def unclear(changed: Mapping[str, Any], fresh: Mapping[str, Variable]) -> tuple[str, ...]:
    """Return the variables whose initial values were rounded, and that steps changed.

    The effect of the rounding cannot be separated from the effect of the steps.
    """
    names = []
    for name, value in changed.items():
        variable = fresh.get(name)
        built = None if variable is None or not variable.is_buffer else variable.value
        if not _is_float(built) or not _is_float(value) or built.shape != value.shape:
            continue
        rounded = built.to(value.device).to(value.dtype)
        moved = rounded != value
        lossy = rounded.to(built.dtype) != built.to(value.device)
        if bool((moved & lossy).any()):
            names.append(name)
    return tuple(names)


def has_floats(value: Any) -> bool:
    """Return True if a value holds a floating-point tensor."""
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors(value))


def copied(value: Any, name: str = "a variable") -> Any:
    """Return a copy that later calls do not change."""
    return _portable(name, value, value, None, {})


def same_values(
    first: Any, second: Any, depth: int = 0, names: Mapping[int, str] = MappingProxyType({})
) -> bool:
    """Return True if two variables hold the same: bits of tensors, contents of containers.

    Parameters with ``names``, by address, are the same if their names are.
    """
    # Weak references compare their referents, which may be freed weights.
    if first is second or depth > 20 or isinstance(first, (*CODE, torch.Generator, weakref.ref)):
        return True
    if id(first) in names or id(second) in names:
        return names.get(id(first)) == names.get(id(second))
    if isinstance(first, Tensor):
        if not isinstance(second, Tensor) or first.layout != second.layout:
            return False
        if first.is_nested and second.is_nested:
            return same_values(first.unbind(), second.unbind(), depth + 1)
        if first.layout != torch.strided:
            first, second = first.to_dense(), second.to_dense()
        return are_same(first, second)
    if type(first).__module__ == "numpy" and hasattr(first, "tobytes"):
        return type(second) is type(first) and first.tobytes() == second.tobytes()
    if type(first).__qualname__ != type(second).__qualname__:
        return False
    if isinstance(first, contextvars.ContextVar):
        return same_values(first.get(None), second.get(None), depth + 1, names)
    if isinstance(first, Mapping):
        items, other_items = ([*mapping, *mapping.values()] for mapping in (first, second))
        return same_values(items, other_items, depth + 1, names)
    if isinstance(first, list | tuple | collections.deque):
        return len(first) == len(second) and all(
            same_values(a, b, depth + 1, names) for a, b in zip(first, second, strict=True)
        )
    if contents := attributes(first):
        return same_values(contents, attributes(second), depth + 1, names)
    try:
        return bool(first == second) or first != first or _is_opaque(first)
    except Exception:  # noqa: BLE001 - an object's comparison may raise anything
        return True


def _portable(
    name: str,
    value: Any,
    fresh: Any,
    dtype: torch.dtype | None,
    classes: Mapping[str, type],
    aliases: Mapping[int, Tensor] = MappingProxyType({}),
) -> Any:
    """Return a copy of a variant's value for another build, whose own value is ``fresh``.

    ``aliases`` are that build's parameters, by the address of the variant's.
    """

    def inner(key: Any, child: Any) -> Any:
        fresh_child = _child(fresh, key)
        return _portable(f"{name}[{key!r:.30}]", child, fresh_child, dtype, classes, aliases)

    if id(value) in aliases:
        return aliases[id(value)]
    if isinstance(value, Tensor):
        detached = value.detach().clone()
        return detached if dtype is None else detached.to(kind(detached, dtype))
    if isinstance(value, Mapping):
        mapping: Any = _copy(name, value)
        mapping.clear()
        for key, child in value.items():
            own_key = aliases.get(id(key), key)
            if own_key is key and isinstance(key, (nn.Module, Tensor)):
                raise NotCarried(f"{name} has modules or tensors as keys")
            mapping[own_key] = inner(key, child)
        return mapping
    if isinstance(value, list | tuple | collections.deque):
        parts = [inner(index, child) for index, child in enumerate(value)]
        if not isinstance(value, tuple):
            copied_list: Any = _copy(name, value)
            copied_list.clear()
            copied_list.extend(parts)
            return copied_list
        return of_type(value, parts)
    if isinstance(value, (*CODE, torch.Generator)):
        if fresh is None:
            raise NotCarried(f"{name} is a {type(value).__name__}, which cannot be copied")
        return fresh
    if not (contents := attributes(value)):
        return _copy(name, value)
    owner = type(value)
    default_type = type(fresh) if type(fresh).__qualname__ == owner.__qualname__ else owner
    portable_type: Any = classes.get(owner.__qualname__, default_type)
    if isinstance(value, enum.Enum):
        return portable_type[value.name]
    try:
        try:
            object_made: Any = object.__new__(portable_type)
        except TypeError:
            object_made = portable_type.__new__(portable_type)
    except TypeError:  # its content is not in its attributes alone
        raise NotCarried(f"{name} is a {owner.__name__}, which cannot be copied") from None
    for key, child in contents.items():
        object.__setattr__(object_made, key, inner(key, child))
    return object_made


def _copy(name: str, value: Any) -> Any:
    try:
        return copy.copy(value)
    except Exception:  # noqa: BLE001 - an object's copy may raise anything
        raise NotCarried(f"{name} is a {type(value).__name__}, which cannot be copied") from None


def _child(value: Any, key: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
        return value[key]
    return getattr(value, key, None) if isinstance(key, str) else None


def _in_variant(variable: Variable, dtype: torch.dtype) -> Any:
    """Return a fresh FP32 build's value as a variant in ``dtype`` initialises it."""
    if variable.is_buffer and isinstance(variable.value, Tensor):
        return variable.value.to(kind(variable.value, dtype))
    return variable.value


def _as_in_variant(variable: Variable, dtype: torch.dtype) -> Tensor:
    value: Tensor = variable.value
    return value.to(dtype)


def _is_float(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided


def _is_opaque(value: Any) -> bool:
    """Return True for an object that compares by identity: its content is unknown."""
    return getattr(type(value), "__eq__", None) is getattr(object, "__eq__", None)
