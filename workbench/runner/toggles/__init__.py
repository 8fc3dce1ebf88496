"""The optimizations, one file each; ``all_toggles()`` gives them in order of stage."""

from __future__ import annotations

import functools

import torch

from workbench import plugins, protocol
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Stage,
    Toggle,
    as_default,
    effective,
    no_effect,
    unknown,
)

__all__ = [
    "Finding",
    "Situation",
    "Stage",
    "Toggle",
    "all_toggles",
    "as_default",
    "effective",
    "no_effect",
    "toggles_before",
    "unknown",
]


@functools.cache
def all_toggles() -> dict[str, Toggle]:
    """Every toggle by name, in the order in which they are applied."""
    toggles = plugins.gather(__name__, "TOGGLE", Toggle, "toggles", _check)
    return dict(sorted(toggles.items(), key=lambda item: (item[1].stage, item[0])))


def toggles_before(stage: Stage) -> list[Toggle]:
    """Return the toggles that are applied before a stage, in order."""
    return [toggle for toggle in all_toggles().values() if toggle.stage < stage]


def _check(toggle: Toggle) -> None:
    """Raise an error unless the catalogue can list the toggle."""
    protocol.round_trip(toggle.info(torch.device("cpu")))
    if toggle.default_option(torch.device("cpu")) not in toggle.options:
        raise ValueError("the default is none of its options")
