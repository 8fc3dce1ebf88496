"""Count the calls of a step's model, to show all that a toggle's file may say about it.

Counted: 1 call a step of inference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from models import Footprint
from workbench.protocol import Blocked, Failure
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.toggles import Finding, Fix, Stage, Toggle, conflict, effective, no_effect

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

ENTERED: list[str] = []


def _blocked(option: str, situation: Situation) -> Blocked | None:
    return conflict(situation, Trait.COMPILED, "{title} hides the calls")


@contextlib.contextmanager
def _counting() -> Iterator[None]:
    ENTERED.append("step")
    yield


def _apply(option: str, build: Build) -> None:
    build.flags.append(_counting)


def _evidence(option: str, observed: Observed) -> Finding:
    return effective(f"{len(ENTERED)} calls") if ENTERED else no_effect("no call")


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    if failure.kind == "out-of-memory":
        yield Fix(1, {"counting": "on"}, "nothing is saved, but counted")


TOGGLE = Toggle(
    name="counting",
    title="Counting",
    help=__doc__,
    group="Numerics",
    stage=Stage.GRAPHS,
    options={"off": "Off", "on": "On"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    traits={"on": (Trait.CAPTURED,)},
    presets={"development": ("on",)},
    memory=lambda option, situation: {"checkpointing": "full"} if option == "on" else {},
    unpredictable="counting takes a time of its own",
    fixes=_fixes,
)
