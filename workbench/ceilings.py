"""Stored ceilings of devices, which a new run reads at its start.

One file in the state folder has a row for each device, driver and version of torch, because another
driver or library may reach another rate.
"""

from __future__ import annotations

import math
from pathlib import Path

from sessions.model import Ceilings
from workbench import state_files, state_folder


def path() -> Path:
    """Return the path of the stored ceilings."""
    return state_folder.path() / "ceilings.json"


def key(device: str, driver: str, torch: str) -> str:
    """Return the key of a device's ceilings: all that they depend on."""
    return " | ".join((device, driver or "no driver", torch))


def load(device: str, driver: str, torch: str) -> tuple[Ceilings | None, str]:
    """Return the stored ceilings or None, and the reason if the file's ceilings are not used."""
    rows, why = state_files.read(path(), Ceilings)
    ceilings = rows.get(key(device, driver, torch))
    if ceilings is None:
        return None, why
    rates = [ceilings.bytes_per_s, *ceilings.flops_per_s.values()]
    if not ceilings.flops_per_s or not all(rate > 0 and math.isfinite(rate) for rate in rates):
        return None, f"{path()} is damaged (a rate in it is not positive) and is ignored"
    return ceilings, ""


def unstored(error: OSError) -> str:
    """Return why ceilings could not be stored, and what to do."""
    return state_folder.unwritten(path(), error)


def store(ceilings: Ceilings) -> None:
    """Store ceilings instead of earlier ones; raise ``OSError`` if they cannot be written."""
    name = key(ceilings.device, ceilings.driver, ceilings.torch)
    state_files.write(path(), name, ceilings, state_files.read(path(), Ceilings)[0])
