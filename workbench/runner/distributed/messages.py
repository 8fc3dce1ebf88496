"""Messages between rank 0 and the workers: JSON lines, as on the runner's own wire."""

from __future__ import annotations

import msgspec

from sessions.model import Configuration
from workbench.protocol import Failure
from workbench.runner.distributed.supervisor import Ended


class Arrange(msgspec.Struct, tag="arrange"):
    """Create the device mesh of this layout, with all other ranks."""

    layout: list[int]


class BuildVariant(msgspec.Struct, tag="build"):
    """Build a variant, unless it exists, and answer.

    ``copy`` distinguishes equal configurations; ``variant`` is the number of rank 0's.
    """

    configuration: Configuration
    copy: int = 0
    variant: int = 0


class Enter(msgspec.Struct, tag="enter"):
    """Prepare the variant that was built last for its steps.

    ``version`` names the weights to step from; a rank that has others loads them. ``prepare``: all
    ranks create their common objects again. ``scale`` is the loss scaler's state. ``restores``:
    rank 0 restores the state of a user's model afterwards, so every other rank does.
    """

    version: int = 0
    prepare: bool = False
    scale: dict[str, int | float] = {}
    restores: bool = False


class Step(msgspec.Struct, tag="step"):
    """Step with the batch after this many advances; ``captured``: by its graph, if it has one."""

    advances: int
    captured: bool = True


class Evaluate(msgspec.Struct, tag="evaluate"):
    """Evaluate ``name`` of ``workbench.runner.numerics.forward`` beside the steps."""

    name: str
    advances: int


class Compare(msgspec.Struct, tag="compare"):
    """Compare the variant's weights with rank 0's."""


class Record(msgspec.Struct, tag="record"):
    """Begin, mark or end the recording of this rank's activity in ``steps`` steps."""

    phase: str
    steps: int = 0


class Leave(msgspec.Struct, tag="leave"):
    """End the steps of the variant for the time being."""


class Forget(msgspec.Struct, tag="forget"):
    """Free everything that was built."""


class Hello(msgspec.Struct, tag="hello"):
    """First message of a worker; ``token`` proves that it belongs to this run.

    ``addresses`` are those of its host.
    """

    rank: int
    token: str
    host: str
    addresses: list[str]
    pid: int


class Ready(msgspec.Struct, tag="ready"):
    """The worker has joined, or has built a variant; ``problem`` is why it could not.

    ``version`` names the weights that the variant has; ``prepared``: it has been entered before.
    """

    problem: Failure | None = None
    version: int = 0
    prepared: bool = False


class Failed(msgspec.Struct, tag="failed"):
    """The worker ends because of this, in its step number ``steps``; 0 if it has begun none."""

    failure: Failure
    steps: int = 0


class Alive(msgspec.Struct, tag="alive"):
    """Heartbeat."""


Order = Arrange | BuildVariant | Enter | Step | Evaluate | Compare | Record | Leave | Forget
Answer = Hello | Ready | Failed | Alive | Ended
