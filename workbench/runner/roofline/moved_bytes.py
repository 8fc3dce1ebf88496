"""Bytes that an operator of torch moves: each tensor is read once and written once.

Operators with indices move only the rows that the indices name. A row that several indices name
counts once if that is certain: no more is read or written than the tensor has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

_GATHERS = frozenset({"embedding", "index_select", "gather", "index", "take", "_unsafe_index"})
_ROW_SCATTERS = frozenset({"index_copy", "index_add", "index_reduce", "index_fill"})
_ELEMENT_SCATTERS = frozenset({"scatter", "scatter_add", "scatter_reduce"})
_PUTS = frozenset({"index_put", "_index_put_impl", "_unsafe_index_put"})
_ACCUMULATES = frozenset({"index_add", "index_reduce", "scatter_add", "scatter_reduce"})
_OVERWRITES = frozenset({
    "copy", "fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential",
    "_foreach_copy", "_foreach_zero",
})  # fmt: skip
_LOSSES = frozenset(
    f"nll_loss{kind}_{direction}" for kind in ("", "2d") for direction in ("forward", "backward")
)


def moved_bytes(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> int:
    """Return the bytes that a call reads and writes.

    ``tensors`` and ``outputs`` are the tensors among its arguments and results that are in the
    memory of the device.
    """
    base = _base_name(function)
    if base in _GATHERS:
        return _gathered_bytes(args[0], tensors, outputs)
    if base in _ROW_SCATTERS | _ELEMENT_SCATTERS | _PUTS:
        return _scattered_bytes(function, args, kwargs, tensors)
    read, written = reads_and_writes(function, args, kwargs, tensors, outputs)
    return sum(map(touched_bytes, (*read, *written)))


def reads_and_writes(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the distinct tensors that a call reads, and those that it writes."""
    base = _base_name(function)
    changed = {id(tensor): tensor for tensor in _changed(function, args, kwargs)}
    written = changed | {id(tensor): tensor for tensor in outputs}
    unread = set(changed) if base in _OVERWRITES else set()
    if function._schema.overload_name.endswith("out"):  # the output may be an input as well
        given = _given(function, args, kwargs)
        unread = set(changed) - {
            id(leaf)
            for argument in function._schema.arguments
            if argument.alias_info is None
            for leaf in tree_flatten(given.get(argument.name))[0]
        }
    if _has_unread_self(base):
        unread.add(id(_given(function, args, kwargs)["self"]))
    read = {id(tensor): tensor for tensor in tensors if id(tensor) not in unread}
    return [*read.values()], [*written.values()]


def touched_bytes(tensor: Tensor) -> int:
    """Return the bytes of the distinct elements; an expanded dimension counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count * tensor.element_size()


def _gathered_bytes(table: Tensor, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return bytes of the indices, of the elements of ``table`` that they name, and of the output.

    A table of integers, too, is read only where it is indexed.
    """
    returned = sum(map(touched_bytes, outputs))
    indices = sum(touched_bytes(tensor) for tensor in tensors if tensor is not table)
    return min(returned, touched_bytes(table)) + indices + returned


def _scattered_bytes(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]
) -> int:
    """Return bytes of the indices, of the source, and of the elements that they change.

    Sums also read these elements. Out of place, all of ``self`` is read, and a tensor like it
    written.
    """
    base, given = _base_name(function), _given(function, args, kwargs)
    target = given["self"]
    source = given.get("source", given.get("src", given.get("values", given.get("value"))))
    changed = _changed_elements(base, given, source) * target.element_size()
    no_index = {id(target), id(source), id(given.get("out"))}
    indices = sum(touched_bytes(tensor) for tensor in tensors if id(tensor) not in no_index)
    read = min(touched_bytes(source), changed) if isinstance(source, Tensor) else 0
    changed = min(changed, touched_bytes(target))
    if not function._schema.name.endswith("_"):
        return indices + read + 2 * touched_bytes(target)
    accumulates = base in _ACCUMULATES or given.get("accumulate") or given.get("reduce")
    return indices + read + (2 if accumulates else 1) * changed


def _changed_elements(base: str, given: Mapping[str, Any], source: Any) -> int:
    """Return how many elements of ``self`` an operator's indices name."""
    target: Tensor = given["self"]
    if base in _ELEMENT_SCATTERS:
        return int(given["index"].numel())
    if base in _ROW_SCATTERS:
        rows = target.shape[given["dim"]] if target.dim() else 1
        return int(given["index"].numel() * target.numel() // max(rows, 1))
    indices = given["indices"]
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return int(source.numel())  # how many a mask names depends on its values
    named = torch.broadcast_shapes(*(index.shape for index in indices if index is not None))
    left = [n for at, n in enumerate(target.shape) if at >= len(indices) or indices[at] is None]
    return math.prod(named) * math.prod(left)


def _base_name(function: Any) -> str:
    return str(function._schema.name).removeprefix("aten::").rstrip("_")


def _changed(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the arguments that an operator writes to, also those that it does not return."""
    given = _given(function, args, kwargs)
    for argument in function._schema.arguments:
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        # Fused updates write gradients only where they divide them by the scale of a loss.
        if argument.name == "grads" and given.get("grad_scale") is None:
            continue
        leaves = tree_flatten(given.get(argument.name))[0]
        yield from (leaf for leaf in leaves if isinstance(leaf, Tensor))


def _given(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, without those that have their defaults."""
    names = [argument.name for argument in function._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _has_unread_self(name: str) -> bool:
    """Return True if an operator reads nothing of ``self``, or one number for each index."""
    return name in _LOSSES or name.endswith("_like") or name.startswith("new_")
