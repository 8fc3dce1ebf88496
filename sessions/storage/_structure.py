"""Refuses HDF5 files with more than plain groups and columns, before any of their data is read.

HDF5 can name other files (external links, external storage, virtual datasets), load filters from
shared libraries, and describe terabytes in a few bytes. Nothing that this program writes does.
"""

from __future__ import annotations

import math

import h5py
from h5py import h5d, h5g, h5l, h5o, h5s, h5t, h5z

from sessions.errors import SessionError
from sessions.numbers import counted
from sessions.plain_text import is_plain, one_line

MOST_OBJECTS = 1_000_000  # groups and columns of a file
_DEEPEST = 8  # groups in one another
_MOST_ATTRIBUTES = 64
LONGEST_KEY = 255  # characters in the name of a group or column
DEEPEST_JSON = 32  # lists and objects in one another
_SHOWN = 80
_FILTERS = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
_DEFLATE_LIMIT = 1100  # deflate cannot make data smaller than 1/1032
# Decoded bytes that a file may claim: real columns have noise, which hardly compresses.
_FREE_BYTES, _BYTES_PER_BYTE = 64_000_000, 100
_LARGEST_CHUNK = 1 << 28
_CLASSES = {h5t.INTEGER, h5t.FLOAT, h5t.ENUM, h5t.STRING, h5t.COMPOUND}


def require_plain(file: h5py.File, size: int) -> None:
    """Raise ``SessionError`` unless the file of ``size`` bytes has only what a session needs."""
    addresses: set[tuple[int, int]] = set()
    claimed = stored = 0
    waiting = [(file.id, "", 0)]
    while waiting:
        group, path, depth = waiting.pop()
        _require_few_attributes(group, path)
        for name in group:
            shown = one_line(f"{path}/{name.decode(errors='replace')}", _SHOWN)
            _require_hard_link(group, name, shown)
            child = h5o.open(group, name)
            address = (h5o.get_info(child).fileno, h5o.get_info(child).addr)
            if address in addresses:
                raise SessionError(f"its {shown} also exists under another name")
            addresses.add(address)
            if len(addresses) > MOST_OBJECTS:
                raise SessionError(f"it has more than {MOST_OBJECTS:,} groups and columns")
            if isinstance(child, h5g.GroupID):
                if depth >= _DEEPEST:
                    raise SessionError(f"its {shown} is nested in too many groups")
                waiting.append((child, shown, depth + 1))
            elif isinstance(child, h5d.DatasetID):
                _require_few_attributes(child, shown)
                claimed += _require_plain_column(child, shown)
                stored += child.get_storage_size()
            else:
                raise SessionError(f"its {shown} is neither a group nor a column")
    if stored > size or claimed > _FREE_BYTES + _BYTES_PER_BYTE * size:
        raise SessionError(
            f"it declares {claimed:,} bytes of columns, more than a file of {size:,} bytes can hold"
        )


def _require_hard_link(group: h5g.GroupID, name: bytes, shown: str) -> None:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise SessionError(f"its {shown} has a name that is not UTF-8") from None
    if len(text) > LONGEST_KEY or not is_plain(text):
        raise SessionError(f"its {shown} has a name with control characters, or a very long one")
    if group.links.get_info(name).type != h5l.TYPE_HARD:
        raise SessionError(f"its {shown} is a link to another file or name; sessions have none")


def _require_few_attributes(object_id: h5g.GroupID | h5d.DatasetID, shown: str) -> None:
    if h5o.get_info(object_id).num_attrs > _MOST_ATTRIBUTES:
        raise SessionError(f"its {shown or '/'} has more than {_MOST_ATTRIBUTES} attributes")


def _require_plain_column(column: h5d.DatasetID, shown: str) -> int:
    """Return the bytes that the column claims; raise ``SessionError`` for one that is not plain."""
    properties, dtype = column.get_create_plist(), column.get_type()
    if properties.get_external_count():
        raise SessionError(f"its {shown} is stored in another file, which sessions never are")
    layout = properties.get_layout()
    if layout not in (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED):
        raise SessionError(f"its {shown} is virtual: its data are in other files or columns")
    filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    if not _FILTERS.issuperset(filters) or len(set(filters)) < len(filters):
        raise SessionError(f"its {shown} has filters that sessions do not use ({filters})")
    _require_plain_type(dtype, shown)
    space = column.get_space()
    if space.get_simple_extent_type() != h5s.SIMPLE:
        raise SessionError(f"its {shown} has no rows")
    claimed = math.prod(column.shape) * dtype.get_size()
    if layout == h5d.CHUNKED:
        if math.prod(properties.get_chunk()) * dtype.get_size() > _LARGEST_CHUNK:
            raise SessionError(f"its {shown} is stored in chunks that are too large")
        most = _DEFLATE_LIMIT * column.get_storage_size()
    else:
        most = column.get_storage_size()
    if claimed > most:
        rows = column.shape[0] if column.shape else 1
        raise SessionError(f"its {shown} declares {counted(rows, 'row')}, more than it can hold")
    return claimed


def _require_plain_type(dtype: h5t.TypeID, shown: str) -> None:
    """Raise ``SessionError`` for references, opaque bytes, arrays and sequences."""
    is_plain_type = dtype.get_class() in _CLASSES
    if isinstance(dtype, h5t.TypeCompoundID):
        members = [dtype.get_member_type(index) for index in range(dtype.get_nmembers())]
        is_plain_type = all(member.get_class() in (h5t.INTEGER, h5t.FLOAT) for member in members)
    if not is_plain_type:
        raise SessionError(f"its {shown} is not a column of numbers or text")
