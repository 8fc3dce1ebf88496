"""Ask torch for algorithms whose results repeat bit by bit.

Operators without such an algorithm run as before. Counted: it sets 1 flag of torch, for the time of
a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from workbench.runner.toggles._toggle import Finding, Stage, Toggle, effective, no_effect

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _apply(option: str, build: Build) -> None:
    build.flags.append(_deterministic)


def _evidence(option: str, observed: Observed) -> Finding:
    if torch.are_deterministic_algorithms_enabled():
        return effective("torch uses algorithms that repeat, where it has them")
    return no_effect("torch may use algorithms that do not repeat")


TOGGLE = Toggle(
    name="deterministic",
    title="Deterministic algorithms",
    help=__doc__,
    group="Numerics",
    stage=Stage.PRECISION,
    options={"off": "Off", "on": "On"},
    apply=_apply,
    evidence=_evidence,
)
