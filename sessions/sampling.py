"""The sampling period of each sensor of a device, or why it is absent, from the environment."""

from __future__ import annotations

from collections.abc import Mapping

from sessions.model import ABSENT, SAMPLING

UTILIZATION = {  # columns of telemetry that are shares of what the device can do
    "busy": "busy",
    "sm_active": "SM active",
    "tensor_active": "tensor cores",
    "dram_active": "DRAM bandwidth",
    "sm_occupancy": "SM occupancy",
    "others": "by other processes",
}
SENSORS = UTILIZATION | {"sm_clock": "clock", "power_w": "power", "temperature": "temperature"}
_SHORT = {  # short names for a list of missing columns
    "sm_active": "SM",
    "tensor_active": "tensor",
    "dram_active": "DRAM",
    "sm_occupancy": "occupancy",
}


def sampling(environment: Mapping[str, str], column: str) -> str:
    """Return how often a column is sampled; empty if it is not or the session does not say."""
    description = environment.get(f"{SAMPLING}{column}", "")
    return "" if description.startswith(ABSENT) else description


def absent(environment: Mapping[str, str]) -> list[str]:
    """Return what is not measured, and why: "no clock: the reason", one clause for each reason."""
    missing: dict[str, dict[str, str]] = {}  # by reason: names by column
    for column, name in SENSORS.items():
        description = environment.get(f"{SAMPLING}{column}", "")
        if description.startswith(ABSENT):
            missing.setdefault(description.removeprefix(ABSENT), {})[column] = name
    return [f"no {', '.join(_brief(names))}: {reason}" for reason, names in missing.items()]


def _brief(names: Mapping[str, str]) -> list[str]:
    """Return names by column, short ones where there are too many for one line."""
    return [_SHORT.get(c, name) if len(names) > 2 else name for c, name in names.items()]
