"""Measurements that are made once on a machine: a JSON table by name in the state folder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from sessions.storage import atomic_write
from workbench import state_folder

Row = TypeVar("Row")


def read(path: Path, kind: type[Row]) -> tuple[dict[str, Row], str]:
    """Return the rows of a file, and a clause that says why it is ignored, if it is."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, kind]), ""  # type: ignore[valid-type]
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{path} cannot be read ({error.strerror}) and is ignored"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return {}, f"{path} is damaged ({error}) and is ignored"


def write(path: Path, name: str, row: object, existing: dict[str, Row]) -> None:
    """Write the file with ``row`` added under ``name``; raises ``OSError``."""
    state_folder.prepare(path.parent)
    atomic_write.write(
        path, msgspec.json.format(msgspec.json.encode({**existing, name: row})), private=True
    )
