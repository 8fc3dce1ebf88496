"""Sentences about the end of a process."""

from __future__ import annotations

import signal

_MISMATCHES = (  # messages of gloo and NCCL
    "distributed collective mismatch",
    "Received data size doesn't match expected size",
    "Detected mismatch between collectives on ranks",
)


def how_ended(code: int) -> str:
    """Return the predicate of a sentence about a process from its exit code (below 0: a signal)."""
    if code >= 0:
        return f"ended with exit code {code}"
    named = -code in set(signal.Signals)  # real-time signals have numbers alone
    return f"was ended by {signal.Signals(-code).name if named else f'signal {-code}'}"


def abort_cause(code: int, last_output: str) -> str:
    """Return why ranks aborted, as a sentence; empty if the output does not name the cause.

    Gloo ends a process that receives data of another size than it expects.
    """
    if code != -signal.SIGABRT or not any(text in last_output for text in _MISMATCHES):
        return ""
    return (
        "Its ranks sent each other data of different sizes, as they do if one of them skips a "
        "layer that the others run: let all ranks run the same layers in every step, or switch "
        "sharding off."
    )
