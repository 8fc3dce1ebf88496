"""What rank 0 says to its peers, and what they answer: JSON lines, as on the runner's own wire."""

from __future__ import annotations

import msgspec

from sessions.model import Configuration
from workbench.protocol import Failure


class Build(msgspec.Struct, tag="build"):
    """Build this configuration's arm, unless it is there, and answer."""

    configuration: Configuration


class Enter(msgspec.Struct, tag="enter"):
    """Take over rank 0's weights for the arm that was built last, and be ready for its steps."""

    scale: dict[str, int | float] = {}  # the loss scaler's state


class Step(msgspec.Struct, tag="step"):
    """Step with the batch that stands after so many advances."""

    advances: int


class Evaluate(msgspec.Struct, tag="evaluate"):
    """Evaluate, beside its steps, what ``workbench.runner.numerics.forward`` names so."""

    what: str
    advances: int


class Compare(msgspec.Struct, tag="compare"):
    """Say whether the arm's weights are rank 0's."""


class Leave(msgspec.Struct, tag="leave"):
    """No more steps of the arm for now."""


class Forget(msgspec.Struct, tag="forget"):
    """Free whatever was built."""


class Ready(msgspec.Struct, tag="ready"):
    """The peer has started, or has built what it was told to; ``problem``: what failed of that."""

    problem: Failure | None = None


class Failed(msgspec.Struct, tag="failed"):
    """The peer ends, because of this."""

    failure: Failure


Order = Build | Enter | Step | Evaluate | Compare | Leave | Forget
Answer = Ready | Failed
