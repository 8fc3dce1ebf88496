"""The optimizations, one file each; ``all_toggles()`` gives them in order of stage."""

from __future__ import annotations

import functools

import torch

from workbench import plugins, protocol
from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import (
    Alternative,
    Finding,
    Fix,
    Situation,
    Stage,
    Toggle,
    Trait,
    Traits,
    as_default,
    effective,
    no_effect,
    unknown,
)

__all__ = [
    "Alternative",
    "Finding",
    "Fix",
    "Situation",
    "Stage",
    "Toggle",
    "Trait",
    "all_toggles",
    "as_default",
    "conflict",
    "effective",
    "no_effect",
    "toggles_before",
    "traits_by_toggle",
    "unknown",
]


@functools.cache
def all_toggles() -> dict[str, Toggle]:
    """Return every toggle by name, in the order in which they are applied."""
    toggles = plugins.gather(__name__, "TOGGLE", Toggle, "toggles", _check)
    return dict(sorted(toggles.items(), key=lambda item: (item[1].stage, item[0])))


def toggles_before(stage: Stage) -> list[Toggle]:
    """Return the toggles that are applied before a stage, in order."""
    return [toggle for toggle in all_toggles().values() if toggle.stage < stage]


def traits_by_toggle() -> Traits:
    """Return the traits of the options of every toggle that has any."""
    return {name: toggle.traits for name, toggle in all_toggles().items() if toggle.traits}


def conflict(situation: Situation, trait: Trait, reason: str, fix: str = "") -> Blocked | None:
    """Return the conflict with an option that has the trait, if the situation has one.

    In the reason, ``{title}`` and ``{option}`` are replaced by that toggle and its option. With
    ``fix`` the toggle is switched off, even if it has alternatives.
    """
    for name, toggle in all_toggles().items():
        option = situation.configuration.toggles[name]
        if trait in toggle.traits.get(option, ()):
            text, choices = toggle.alternative(option, trait)
            if fix:
                text, choices = fix, {name: toggle.off}
            return Blocked(reason.format(title=toggle.title, option=option), text, choices)
    return None


def _check(toggle: Toggle) -> None:
    """Raise an error if the catalogue cannot list the toggle."""
    protocol.round_trip(toggle.info(torch.device("cpu")))
    if toggle.default_option(torch.device("cpu")) not in toggle.options:
        raise ValueError("the default is none of its options")
    preferred = (option for options in toggle.presets.values() for option in options)
    if unknown_options := {*toggle.traits, *toggle.alternatives, *preferred} - {*toggle.options}:
        raise ValueError(f"it has no option {sorted(unknown_options)[0]!r}")
