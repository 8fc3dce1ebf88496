"""Columns of a session file: listed, checked for type and length, and read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import h5py
import numpy as np
from numpy.typing import NDArray

from sessions.errors import SessionError
from sessions.schema import ColumnInfo
from sessions.storage._lazy import Source, read_column


def read_short(
    parent: h5py.Group, name: str, columns: Mapping[str, ColumnInfo]
) -> dict[str, NDArray]:
    """Return a table of few rows, all of whose columns must exist, read at once."""
    group = child_group(parent, name)
    names, _ = check_columns(group, columns)
    for column in columns:
        if column not in names:
            raise SessionError(f"its {group.name} lacks the column {column}")
    return {column: read_column(group[column]) for column in columns}


def list_columns(
    group: h5py.Group, columns: Mapping[str, ColumnInfo], source: Source
) -> tuple[list[str], int]:
    """Return the group's columns, those we know first, and their number of rows.

    Those of a trusted file, which this program wrote, are not opened to see whether they fit: it
    is most of the time that opening a session of many segments takes.
    """
    if not source.trusted:
        return check_columns(group, columns)
    names = _in_order(group, columns)
    return names, group[names[0]].shape[0] if names else 0


def _in_order(names: Iterable[str], columns: Mapping[str, ColumnInfo]) -> list[str]:
    present = dict.fromkeys(names)
    return [name for name in columns if name in present] + [
        name for name in present if name not in columns
    ]


def check_columns(group: h5py.Group, columns: Mapping[str, ColumnInfo]) -> tuple[list[str], int]:
    """Return what ``list_columns`` does; refuse columns of wrong type, shape or length."""
    lengths = {
        name: check_column(f"{group.name}/{name}", dataset, columns.get(name))[0]
        for name, dataset in group.items()
    }
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {rows:,}" for name, rows in sorted(lengths.items()))
        raise SessionError(f"its columns in {group.name} differ in length ({listed})")
    return _in_order(lengths, columns), next(iter(lengths.values()), 0)


def check_column(
    name: str, dataset: object, info: ColumnInfo | None, axes: int = 1
) -> tuple[int, ...]:
    """Return the shape of a column; refuse another type or number of axes."""
    if not isinstance(dataset, h5py.Dataset):
        raise SessionError(f"its {name} is not a column of numbers or text")
    shape, dtype = dataset.shape, dataset.dtype
    _check_type(name, dtype, None if info is None else info.dtype)
    if shape is None or len(shape) != axes:
        expected = "one axis" if axes == 1 else f"{axes} axes"
        raise SessionError(f"its {name} has shape {shape}, expected {expected}")
    return tuple(shape)


def _check_type(name: str, dtype: np.dtype, expected: str | None) -> None:
    is_text = h5py.check_string_dtype(dtype) is not None
    if expected is None:
        fits = is_text or dtype.kind in "biuf"
        expected = "numbers or text"
    elif expected == "str":
        fits, expected = is_text, "text"
    else:
        fits = not is_text and dtype.newbyteorder("=") == np.dtype(expected)
    if not fits:
        raise SessionError(f"its {name} has type {dtype}, expected {expected}")


def child_group(parent: h5py.Group, name: str) -> h5py.Group:
    child = parent.get(name)
    if not isinstance(child, h5py.Group):
        raise SessionError(f"it lacks the group {parent.name.rstrip('/')}/{name}")
    return child


def child_groups(file: h5py.File, name: str) -> list[h5py.Group]:
    parent = child_group(file, name)
    return [child_group(parent, child) for child in sorted(parent, key=lambda key: (len(key), key))]
