"""Changes that a stranger could make to a session file: structure, types, sizes, links and text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sessions.storage import seal

# Markup, escape sequences, directions, formulas, options and other names that are not names.
TEXTS = [
    "<img src='file:///etc/passwd'><b>bold</b>",
    "<script>alert(1)</script>",
    "\x1b]0;owned\x07\x1b[31mred\x1b[0m",
    "\u202egnp.exe",
    "=HYPERLINK(\"http://x\",\"y\")",
    "| a | b |\n|---|---|",
    "[bold red]rich[/]",
    "--runner=sh -c 'touch INJECTED'",
    "'; touch INJECTED; '",
    "a\nb\rc\td\x0be",
    "x" * 3000,
    "\ud7ff\ufffe\U0001f600",
    "{}%s{0}%(x)s",
    "nan", "-1", "", "0", "A", "time", "measured", "total", "FASTER",
    ".".join("a" * 200),
]  # fmt: skip
NUMBERS: list[Any] = [
    float("nan"), float("inf"), -float("inf"), -1, -5.0, 0, 1e-300, 1e-45, 1e300, 1e18, 2**31,
    -(2**31), 2**63 - 1, 2**53, 0.5, 7, 255,
]  # fmt: skip
VALUES: list[Any] = [
    *NUMBERS,
    *TEXTS[:4],
    None,
    True,
    False,
    [],
    {},
    [1, 2],
    {"a": 1},
    10**400,
    "1",
]


# A column that claims a billion rows cannot be read, so it cannot be changed further either.
_UNCHANGEABLE = (
    KeyError, ValueError, TypeError, OSError, RuntimeError, OverflowError, MemoryError,
)  # fmt: skip


def mutate(file: h5py.File, rng: random.Random, count: int) -> list[str]:
    """Change ``count`` things of an open file; return what was done."""
    done = []
    for _ in range(count):
        change = rng.choice(CHANGES)
        try:
            done.append(f"{change.__name__} {change(file, rng)}")
        except _UNCHANGEABLE as error:
            done.append(f"{change.__name__} failed: {error}")
    return done


def column_cases(contents: list[bytes], path: Path) -> list[tuple[int, str, float]]:
    """Return a case for each column of numbers of each file and each extreme number.

    Columns that differ in the numbers of their groups alone are one column. ``path`` is scratch.
    """
    cases: dict[tuple[int, str, float], None] = {}
    for number, content in enumerate(contents):
        path.write_bytes(content)
        with h5py.File(path) as file:
            for name in things(file, h5py.Dataset):
                if file[name].dtype.kind in "fiu":
                    pattern = re.sub(r"\d+", "*", name)
                    cases |= dict.fromkeys((number, pattern, float(value)) for value in NUMBERS)
    return list(cases)


def fill_columns(file: h5py.File, pattern: str, value: float) -> str:
    """Put a number into all rows of the columns of this pattern; return what was done."""
    for name in things(file, h5py.Dataset):
        if re.sub(r"\d+", "*", name) == pattern:
            values = file[name][()]
            with np.errstate(all="ignore"):
                values[...] = np.array(value).astype(values.dtype)
            file[name][...] = values
    return f"{pattern} {value}"


def things(file: h5py.File, kind: type) -> list[str]:
    """Return the names of all groups or datasets."""
    names: list[str] = []
    file.visititems(lambda name, thing: names.append(name) if isinstance(thing, kind) else None)
    return names


def _dataset(file: h5py.File, rng: random.Random) -> str:
    return rng.choice(things(file, h5py.Dataset))


def _any(file: h5py.File, rng: random.Random) -> str:
    return rng.choice(things(file, h5py.Dataset | h5py.Group))


def _replace(file: h5py.File, name: str, values: Any, **options: Any) -> None:
    attributes = dict(file[name].attrs)
    del file[name]
    made = file.create_dataset(name, data=values, **options)
    for key, value in attributes.items():
        made.attrs[key] = value


def numbers(file: h5py.File, rng: random.Random) -> str:
    """Put extreme numbers into a column."""
    name = _dataset(file, rng)
    values = file[name][()]
    if not values.size or values.dtype.kind not in "fiu":
        return text(file, rng)
    places = slice(None) if rng.random() < 0.4 else rng.randrange(len(values))
    chosen = rng.choice(NUMBERS)
    with np.errstate(all="ignore"):
        values[places] = np.array(chosen).astype(values.dtype)
    file[name][...] = values
    return f"{name} {chosen}"


def order(file: h5py.File, rng: random.Random) -> str:
    """Shuffle, reverse or repeat the rows of a column."""
    name = _dataset(file, rng)
    values = file[name][()]
    if not values.ndim:
        return "nothing"
    file[name][...] = rng.choice(
        [values[::-1], np.roll(values, 3), np.repeat(values[:1], len(values))]
    )
    return name


def text(file: h5py.File, rng: random.Random) -> str:
    """Put hostile text into cells of a column."""
    named = [
        name for name in things(file, h5py.Dataset) if h5py.check_string_dtype(file[name].dtype)
    ]
    name, chosen = rng.choice(named), rng.choice(TEXTS)
    values = file[name][()]
    places = slice(None) if rng.random() < 0.3 else rng.randrange(len(values))
    values[places] = chosen
    file[name][...] = values
    return f"{name} {chosen[:20]!r}"


def retype(file: h5py.File, rng: random.Random) -> str:
    """Store a column in another type."""
    name = _dataset(file, rng)
    rows = file[name].shape
    dtype = rng.choice(
        ["i1", "u8", "f2", "f4", "f8", ">f8", "S5", "c8", "?", "V4", h5py.string_dtype()]
    )
    is_text = dtype == "S5" or not isinstance(dtype, str)
    values = np.full(rows, b"x", object) if is_text else np.ones(rows)
    _replace(file, name, values.astype(dtype) if isinstance(dtype, str) else values, dtype=dtype)
    return f"{name} {dtype}"


def resize(file: h5py.File, rng: random.Random) -> str:
    """Give a column another number of rows or axes."""
    name = _dataset(file, rng)
    values = file[name][()]
    rows = len(values)
    changed = rng.choice([values[: rows // 2], values[:0], np.concatenate([values, values]),
                          values.reshape(1, -1), values[:1]])  # fmt: skip
    _replace(file, name, changed, dtype=file[name].dtype)
    return f"{name} {changed.shape}"


def empty_table(file: h5py.File, rng: random.Random) -> str:
    """Take all rows from all columns of a group."""
    groups = [name for name in things(file, h5py.Group)
              if all(isinstance(child, h5py.Dataset) for child in file[name].values())]  # fmt: skip
    name = rng.choice(groups)
    for column in list(file[name]):
        _replace(file, f"{name}/{column}", file[f"{name}/{column}"][:0])
    return name


def claim(file: h5py.File, rng: random.Random) -> str:
    """Claim rows that are not there, or that compress to nothing."""
    name = _dataset(file, rng)
    dtype = file[name].dtype
    rows = rng.choice([10**5, 3 * 10**6, 10**9, 10**15])
    if rows <= 3 * 10**6 and dtype.kind in "fiu":
        options = {"compression": "gzip", "shuffle": True, "chunks": (65536,)}
        _replace(file, name, np.zeros(rows, dtype), **options)
        return f"{name} {rows} zeros"
    del file[name]
    file.create_dataset(name, shape=(rows,), dtype=dtype, chunks=(1024,))
    return f"{name} {rows}"


def remove(file: h5py.File, rng: random.Random) -> str:
    """Delete a group, a column or an attribute."""
    name = _any(file, rng)
    attributes = list(file[name].attrs)
    if attributes and rng.random() < 0.5:
        chosen = rng.choice(attributes)
        del file[name].attrs[chosen]
        return f"{name}@{chosen}"
    del file[name]
    return name


def rename(file: h5py.File, rng: random.Random) -> str:
    """Give a group or a column another name."""
    name = _any(file, rng)
    parent = name.rpartition("/")[0]
    new = rng.choice([text for text in TEXTS if text and "\x00" not in text])[:300].replace(
        "/", "_"
    )
    file.move(name, f"{parent}/{new}" if parent else new)
    return f"{name} to {new[:20]!r}"


def nest(file: h5py.File, rng: random.Random) -> str:
    """Put groups in groups, or a group where a column was."""
    name = _any(file, rng)
    if rng.random() < 0.5:
        del file[name]
        file.create_group(name)
        return f"group {name}"
    parent = name if isinstance(file[name], h5py.Group) else name.rpartition("/")[0] or "/"
    file.create_group(f"{parent}/{'/'.join('g' * rng.choice([1, 5, 200]))}")
    return f"in {parent}"


def link(file: h5py.File, rng: random.Random) -> str:
    """Link to another file or name, or store a column elsewhere."""
    name = _any(file, rng)
    other = _any(file, rng)
    kind = rng.choice(["soft", "external", "hard", "cycle", "virtual", "storage"])
    rows = file[name].shape if isinstance(file[name], h5py.Dataset) else (3,)
    if kind == "cycle":
        group = rng.choice(things(file, h5py.Group))
        file[f"{group}/loop"] = file["/"]
        return f"{group} cycle"
    del file[name]
    if kind == "virtual":
        layout = h5py.VirtualLayout(shape=rows, dtype="f8")
        layout[:] = h5py.VirtualSource("/etc/hostname", "x", shape=rows)
        file.create_virtual_dataset(name, layout)
    elif kind == "storage":
        file.create_dataset(
            name, shape=rows, dtype="S4", external=[("/etc/passwd", 0, 4 * rows[0])]
        )
    else:
        file[name] = {"soft": h5py.SoftLink("/" + other), "hard": file.get(other),
                      "external": h5py.ExternalLink("/etc/passwd", "/x")}[kind]  # fmt: skip
    return f"{name} {kind}"


def filtered(file: h5py.File, rng: random.Random) -> str:
    """Store a column through another filter."""
    name = _dataset(file, rng)
    options = rng.choice([{"compression": "lzf"}, {"scaleoffset": 2}, {"compression": 9}])
    _replace(file, name, file[name][()], chunks=True, **options)
    return f"{name} {options}"


def attribute(file: h5py.File, rng: random.Random) -> str:
    """Put another value into an attribute."""
    holders = [name for name in things(file, h5py.Dataset | h5py.Group) if len(file[name].attrs)]
    name = rng.choice([*holders, "/"])
    key = rng.choice(list(file[name].attrs))
    value = rng.choice([*NUMBERS, *TEXTS, np.arange(3), h5py.Empty("f8"), np.array(["a"], "S1"),
                        file["/"].ref, b"\xff\xfe", "y" * 300_000])  # fmt: skip
    file[name].attrs[key] = value
    return f"{name}@{key} {str(value)[:20]!r}"


JSON = ("configuration", "evidence", "ledger", "arms", "facts", "asked")


def json_entry(file: h5py.File, rng: random.Random) -> str:
    """Change one entry of a JSON attribute."""
    holders = [
        (name, key) for name in things(file, h5py.Group) for key in file[name].attrs if key in JSON
    ]
    name, key = rng.choice(holders)
    value = json.loads(file[name].attrs[key])
    value = _changed(value, rng)
    written = json.dumps(value)
    if rng.random() < 0.05:
        written = rng.choice([written[:-1], "[" * 900 + "]" * 900, '{"a":' * 500 + "1" + "}" * 500])
    file[name].attrs[key] = written
    return f"{name}@{key}"


def _changed(value: Any, rng: random.Random) -> Any:
    """Return JSON with one entry added, removed or replaced somewhere in it."""
    inner = (
        list(value)
        if isinstance(value, dict)
        else list(range(len(value)))
        if isinstance(value, list)
        else []
    )
    if not inner or rng.random() < 0.15:
        if isinstance(value, dict) and rng.random() < 0.5:
            return value | {rng.choice([*LEDGER, *TEXTS]): rng.choice(VALUES)}
        return rng.choice(VALUES)
    key = rng.choice(inner)
    if rng.random() < 0.15:
        del value[key]
    else:
        value[key] = _changed(value[key], rng)
    return value


LEDGER = ["numbers", "numbers_right", "failure", "text", "prompt", "prefill_ms", "own_peak_bytes",
          "others_bytes", "model_flops", "matrix_flops_per_s", "error", "first_s", "floor_us",
          "segments", "numerics", "history", "prediction", "p", "of", "more_s", "final",
          "reasons", "floor", "notes", "step_us", "values_0"]  # fmt: skip

CHANGES: list[Callable[[h5py.File, random.Random], str]] = [
    numbers, numbers, numbers, order, text, text, text, retype, resize, empty_table, claim, remove,
    rename, nest, link, filtered, attribute, attribute, json_entry, json_entry, json_entry,
]  # fmt: skip


def damage(content: bytearray, rng: random.Random) -> str:
    """Change bytes of the HDF5 part; headers of objects get checksums that fit again."""
    headers = [offset for offset in _places_of(content, b"OHDR") if content[offset + 4] == 2]
    if headers and rng.random() < 0.7:
        start = rng.choice(headers)
        flags = content[start + 5]
        first = start + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        size = int.from_bytes(content[first : first + width], "little")
        end = first + width + size
        if end + 4 <= len(content) and size:
            for _ in range(rng.choice([1, 1, 2, 5])):
                content[rng.randrange(first + width, end)] = rng.randrange(256)
            content[end : end + 4] = checksum(bytes(content[start:end])).to_bytes(4, "little")
            return f"header at {start}"
    for _ in range(rng.choice([1, 3, 30])):
        content[rng.randrange(seal.SIZE, len(content))] = rng.randrange(256)
    return "bytes"


def _places_of(content: bytearray, signature: bytes) -> list[int]:
    places, start = [], content.find(signature)
    while start >= 0:
        places.append(start)
        start = content.find(signature, start + 1)
    return places


def checksum(data: bytes) -> int:
    """Return Jenkins' lookup3 hash ("hashlittle"), with which HDF5 guards its metadata."""
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (32 - bits))) & mask

    a = b = c = (0xDEADBEEF + len(data)) & mask
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    while len(words) > 3:
        a, b, c = (a + words[0]) & mask, (b + words[1]) & mask, (c + words[2]) & mask
        for first, second, third, bits in _MIX:
            state = {"a": a, "b": b, "c": c}
            state[first] = ((state[first] - state[second]) & mask) ^ rotated(state[second], bits)
            state[second] = (state[second] + state[third]) & mask
            a, b, c = state["a"], state["b"], state["c"]
        words = words[3:]
    if not words:
        return c
    words += [0] * (3 - len(words))
    a, b, c = (a + words[0]) & mask, (b + words[1]) & mask, (c + words[2]) & mask
    for first, second, bits in _FINAL:
        state = {"a": a, "b": b, "c": c}
        state[first] = ((state[first] ^ state[second]) - rotated(state[second], bits)) & mask
        a, b, c = state["a"], state["b"], state["c"]
    return c


_MIX = [("a", "c", "b", 4), ("b", "a", "c", 6), ("c", "b", "a", 8),
        ("a", "c", "b", 16), ("b", "a", "c", 19), ("c", "b", "a", 4)]  # fmt: skip
_FINAL = [("c", "b", 14), ("a", "c", 11), ("b", "a", 25), ("c", "b", 16), ("a", "c", 4),
          ("b", "a", 14), ("c", "b", 24)]  # fmt: skip
