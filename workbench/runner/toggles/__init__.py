"""The optimizations, one file each; ``all_toggles()`` gives them in order of stage."""

from __future__ import annotations

import functools

import torch

from workbench import plugins, protocol
from workbench.runner.toggles._toggle import (
    Finding,
    Fix,
    Situation,
    Stage,
    Toggle,
    Trait,
    as_default,
    effective,
    no_effect,
    unknown,
)

__all__ = [
    "Finding",
    "Fix",
    "Situation",
    "Stage",
    "Toggle",
    "Trait",
    "all_toggles",
    "as_default",
    "effective",
    "has",
    "no_effect",
    "unknown",
]


@functools.cache
def all_toggles() -> dict[str, Toggle]:
    """Every toggle by name, in the order in which they are applied."""
    toggles = plugins.gather(__name__, "TOGGLE", Toggle, "toggles", _check)
    return dict(sorted(toggles.items(), key=lambda item: (item[1].stage, item[0])))


def has(situation: Situation, *traits: Trait) -> bool:
    """Return True if an option of the situation has one of the traits."""
    return any(
        not set(traits).isdisjoint(toggle.traits.get(situation.option(name), ()))
        for name, toggle in all_toggles().items()
        if toggle.traits
    )


def _check(toggle: Toggle) -> None:
    """Raise an error unless the catalogue can list the toggle."""
    protocol.round_trip(toggle.info(torch.device("cpu")))
    if toggle.default_option(torch.device("cpu")) not in toggle.options:
        raise ValueError("the default is none of its options")
