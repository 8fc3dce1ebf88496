"""Failures of the connection to the runner that the window itself detects."""

from __future__ import annotations

from workbench.protocol import VERSION, Failure


def other_version(version: int) -> Failure:
    """Return the failure of a runner with another version of the protocol."""
    return Failure(
        kind="wire",
        sentence=f"The runner uses version {version} of the protocol, but this window uses "
        f"{VERSION}.",
        fix="Install the same version on both sides.",
    )


def no_answer(seconds: float) -> Failure:
    """Return the failure of a runner that has been silent for so long."""
    return Failure(
        kind="hang",
        sentence=f"The runner has not answered for {seconds:.0f} seconds.",
        fix="Wait, or start a new runner; everything measured so far is kept.",
    )


def does_not_fit(error: Exception) -> Failure:
    """Return the failure of a message that does not fit the session."""
    return Failure(
        kind="wire",
        sentence="A message of the runner does not fit the session; it was left out.",
        fix="If this repeats, start a new runner.",
        detail=repr(error),
    )
