"""Structures that hold tensors: what a batch may be, and what a model may return.

Supported: tensors of any layout, tuples, lists, mappings, named tuples, dataclasses, and objects
whose attributes hold these. Everything else (None, numbers, text) is passed on as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

SUPPORTED = (
    "a tensor (dense or sparse, of any shape), or a tuple, list, dict, named tuple, dataclass or "
    "other object that holds tensors"
)
_OPAQUE = (nn.Module, type, FunctionType, MethodType, ModuleType)


def tensors(value: Any) -> list[Tensor]:
    """Return all tensors in ``value``, in its order, however deep they lie."""
    return _tensors(value, set())


def _tensors(value: Any, visited_ids: set[int]) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inner = _children(value)
    if not inner or id(value) in visited_ids:
        return []
    visited_ids.add(id(value))
    return [tensor for child in inner.values() for tensor in _tensors(child, visited_ids)]


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return ``value`` with ``function`` of each tensor in its place; ``value`` does not change."""
    if isinstance(value, Tensor):
        return function(value)
    if not tensors(value):
        return value
    mapped = {key: map_tensors(child, function) for key, child in _children(value).items()}
    if isinstance(value, tuple):
        return of_type(value, [mapped.get(index, child) for index, child in enumerate(value)])
    copied = copy.copy(value)
    if isinstance(value, Mapping | list):
        for key, child in mapped.items():
            copied[key] = child
    else:
        for key, child in mapped.items():
            object.__setattr__(copied, key, child)  # also of a frozen dataclass
    return copied


def kind(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return a tensor's dtype in a model of ``dtype``: complex numbers and integers stay such."""
    if tensor.is_complex():
        return torch.complex128 if dtype == torch.float64 else torch.complex64
    return dtype if tensor.is_floating_point() else tensor.dtype


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Return ``value`` with the numbers of every tensor as in a model of ``dtype``."""
    return map_tensors(value, lambda x: x.to(kind(x, dtype)))


def slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that its classes keep in ``__slots__``."""
    contents = {}
    for owner in type(value).__mro__:
        names = owner.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                contents[name] = getattr(value, name)
    return contents


def listed_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the entries of the outermost lists of modules inside a module."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from listed_modules(child)


def of_type(value: Any, parts: Iterable[Any]) -> Any:
    """Return a list or tuple of the type of ``value``; a named one's constructor is not called."""
    return type(value)._make(parts) if is_named_tuple(value) else type(value)(parts)


def is_named_tuple(value: Any) -> bool:
    """Return True for a tuple whose parts have names."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _children(value: Any) -> dict[Any, Any]:
    """Return the parts of a container by key, index or attribute; none of anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, PackedSequence):  # its lengths, at 1, are read on the CPU
        return {index: child for index, child in enumerate(value) if index != 1}
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, _OPAQUE):
        return {}
    return {**slots(value), **getattr(value, "__dict__", {})}
