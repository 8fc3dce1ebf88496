"""Sentences about the end of a process."""

from __future__ import annotations

import signal


def how_ended(code: int) -> str:
    """Return the predicate of a sentence about a process from its exit code (below 0: a signal)."""
    if code >= 0:
        return f"ended with exit code {code}"
    named = -code in set(signal.Signals)  # real-time signals have numbers alone
    return f"was ended by {signal.Signals(-code).name if named else f'signal {-code}'}"
