"""Limits of what plots draw of a session; a thread that opens a file reads that much first."""

from __future__ import annotations

import heapq

from sessions.model import Session

MOST_SEGMENTS = 128  # each takes a millisecond to prepare, and a screen has few pixels for each
MOST_DEVICES = 16  # the lines of more could not be distinguished


def devices(session: Session) -> list[str]:
    """Return the devices to draw, GPUs before the CPU: gpu0, gpu1 ... cpu, cpu1."""
    return heapq.nsmallest(MOST_DEVICES, session.telemetry, device_order)


def device_order(device: str) -> tuple[bool, int, str]:
    """Return the key by which devices are sorted."""
    return is_cpu(device), len(device), device


def is_cpu(device: str) -> bool:
    """Return True for the host and for one of its processes."""
    return device.startswith("cpu")
