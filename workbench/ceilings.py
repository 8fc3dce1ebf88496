"""A device's measured ceilings, kept: a new run knows them at its start.

One file in the state folder; a row for each device, driver and version of torch, because another
driver or library may reach another rate.
"""

from __future__ import annotations

import math
from pathlib import Path

from sessions.model import Ceilings
from workbench import state_files, state_folder


def path() -> Path:
    """Where the ceilings are kept."""
    return state_folder.path() / "ceilings.json"


def key(device: str, driver: str, torch: str) -> str:
    """What ceilings hold for."""
    return " | ".join((device, driver or "no driver", torch))


def load(device: str, driver: str, torch: str) -> tuple[Ceilings | None, str]:
    """The kept ceilings, or None; and why what is kept is not used, empty where nothing is."""
    rows, why = state_files.read(path(), Ceilings)
    found = rows.get(key(device, driver, torch))
    if found is None:
        return None, why
    rates = [found.bytes_per_s, *found.flops_per_s.values()]
    if not found.flops_per_s or not all(rate > 0 and math.isfinite(rate) for rate in rates):
        return None, f"{path()} is damaged (a rate in it is not positive) and is passed over"
    return found, ""


def unstored(error: OSError) -> str:
    """Why ceilings could not be stored, and what to do."""
    return state_folder.unwritten(path(), error)


def store(found: Ceilings) -> None:
    """Keep ceilings in place of earlier ones; raises ``OSError``."""
    name = key(found.device, found.driver, found.torch)
    state_files.write(path(), name, found, state_files.read(path(), Ceilings)[0])
