"""Columns as CSV: a header line, numbers in full precision, NaN empty, no formula in a cell.

The bytes are those of Python's ``csv.writer``, which writes a cell at a time. Here each column
becomes text at once: equal texts are quoted once, and numbers are formatted by ``msgspec``, whose
shortest decimals are Python's wherever Python writes no exponent.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.plain_text import for_spreadsheet

_ROWS = 10_000  # rows per batch: other threads run between two batches
_LEAST, _MOST = 1e-4, 1e16  # in this range Python writes a float without an exponent
_ENCODER = msgspec.json.Encoder()


def csv_bytes(table: Mapping[str, ArrayLike], separator: str = ",") -> bytes:
    """Return a table of columns of one length as CSV."""
    quote = _Quoted(separator)
    columns = [np.asarray(column) for column in table.values()]
    lines = io.StringIO(newline="")
    lines.write(quote.row(map(for_spreadsheet, table)))
    if not columns:
        return lines.getvalue().encode()
    if len({len(column) for column in columns}) > 1:
        raise ValueError("the columns of a table differ in length")
    if len(columns) == 1:  # an empty cell alone on its line is quoted
        for cell in _texts(columns[0], quote):
            lines.write(f"{cell}\n" if cell else '""\n')
        return lines.getvalue().encode()
    for start in range(0, len(columns[0]), _ROWS):
        cells = [_texts(column[start : start + _ROWS], quote) for column in columns]
        lines.writelines(f"{line}\n" for line in map(separator.join, zip(*cells, strict=True)))
    return lines.getvalue().encode()


class _Quoted:
    """Cells as ``csv.writer`` writes them; each text is quoted once."""

    def __init__(self, separator: str) -> None:
        self._buffer = io.StringIO(newline="")
        self._writer = csv.writer(self._buffer, delimiter=separator, lineterminator="\n")
        self._by_text: dict[str, str] = {}

    def row(self, cells: Iterable[object]) -> str:
        """Return a line of cells."""
        self._buffer.seek(0)
        self._buffer.truncate()
        self._writer.writerow(cells)
        return self._buffer.getvalue()

    def cell(self, value: object) -> str:
        """Return a cell, without a separator."""
        if not isinstance(value, str):
            return self._alone(value)
        known = self._by_text.get(value)
        if known is None:
            known = self._by_text[value] = self._alone(for_spreadsheet(value))
        return known

    def _alone(self, value: object) -> str:
        return self.row([value, ""])[:-2]  # beside another cell, which is empty


def _texts(column: NDArray, quote: _Quoted) -> list[str]:
    """Return the cells of a column."""
    if column.dtype == np.float64:
        return _float_texts(column)
    if column.dtype == np.float32:  # shorter than what reads back as the same float64
        return ["" if cell == "nan" else cell for cell in column.astype(str).tolist()]
    if column.dtype.kind in "iub":
        return list(map(str, column.tolist()))
    if column.dtype.kind == "f":
        return ["" if cell != cell else quote.cell(cell) for cell in column.tolist()]
    return list(map(quote.cell, column.tolist()))


def _float_texts(column: NDArray) -> list[str]:
    """Return ``repr`` of numbers; NaN is empty."""
    if not len(column):
        return []
    sizes = np.abs(column)
    with np.errstate(invalid="ignore"):
        special = np.flatnonzero(~(((sizes >= _LEAST) & (sizes < _MOST)) | (sizes == 0)))
    numbers = column.tolist()
    texts = _ENCODER.encode(numbers).decode()[1:-1].split(",")
    for index in special.tolist():
        number = numbers[index]
        texts[index] = "" if number != number else repr(number)
    return texts
