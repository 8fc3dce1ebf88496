"""How a process ended, in words."""

from __future__ import annotations

import signal


def how_ended(code: int) -> str:
    """The predicate of a sentence about a process, from its exit code: negative for a signal."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else (
        f"ended with exit code {code}")  # fmt: skip
