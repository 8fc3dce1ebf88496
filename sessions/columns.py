"""Growable columns: named numpy arrays of one length, appended to in batches.

A column's rows are numbers, or arrays of one shape where its dtype says so: ``"(2,3)f4"``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

TableColumns = dict[str, list[float | str | None]]  # a table as messages contain it; None is NaN


class Rows(Mapping[str, NDArray]):
    """Named columns of equal length: the first ``rows`` of their buffers."""

    def __init__(self, buffers: dict[str, NDArray], rows: int) -> None:
        self._buffers, self.rows = buffers, rows

    def __getitem__(self, name: str) -> NDArray:
        return self._buffers[name][: self.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)


class Columns(Rows):
    """Named columns of equal length; appending is amortised O(1) a row.

    A column that an append leaves out is filled with NaN (floating) or 0 (integer).
    ``columns["name"]`` is a view of the rows so far, valid until the next append.
    """

    def __init__(self, dtypes: Mapping[str, str], capacity: int = 256) -> None:
        super().__init__({name: np.empty(capacity, dtype) for name, dtype in dtypes.items()}, 0)
        self._capacity = capacity

    def so_far(self) -> Rows:
        """Return the rows so far, which stay as they are while more are appended."""
        return Rows(dict(self._buffers), self.rows)

    def append(self, batch: Mapping[str, ArrayLike | Sequence[float]]) -> None:
        """Append one batch: columns by name, all of one length.

        A number that is too large for its column becomes infinite.
        Raises ``ValueError`` for an unknown column or columns of differing lengths.
        """
        unknown = batch.keys() - self._buffers.keys()
        if unknown:
            raise ValueError(
                f"unknown columns {sorted(unknown)}; expected some of {sorted(self._buffers)}"
            )
        arrays = {name: np.asarray(values) for name, values in batch.items()}
        lengths = {name: array.shape for name, array in arrays.items()}
        counts = {shape[:1] for shape in lengths.values()}
        cells = {name: self._buffers[name].shape[1:] for name in lengths}
        if len(counts) > 1 or any(shape[1:] != cells[name] for name, shape in lengths.items()):
            raise ValueError(f"columns of one batch differ in length: {lengths}")
        (count,) = counts.pop() if counts else (0,)
        self._reserve(self.rows + count)
        rows = slice(self.rows, self.rows + count)
        for name, buffer in self._buffers.items():
            missing = np.nan if buffer.dtype.kind == "f" else 0
            with np.errstate(over="ignore"):
                buffer[rows] = arrays.get(name, missing)
        self.rows += count

    def _reserve(self, rows: int) -> None:
        if rows <= self._capacity:
            return
        self._capacity = max(rows, 2 * self._capacity)
        for name, buffer in self._buffers.items():
            grown = np.empty((self._capacity, *buffer.shape[1:]), buffer.dtype)
            grown[: self.rows] = buffer[: self.rows]
            self._buffers[name] = grown


def row_count(columns: Mapping[str, NDArray]) -> int:
    """Select rows of live, loaded or plain columns without reading one that is still in a file."""
    rows = getattr(columns, "rows", None)
    if rows is None:
        rows = len(next(iter(columns.values()), ()))
    return int(rows)
