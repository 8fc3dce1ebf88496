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
    "matrix_dtype",
    "no_effect",
    "toggles_before",
    "traits_by_toggle",
    "unknown",
    "why_incomparable",
    "why_unpredictable",
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

    In the reason ``{title}`` and ``{option}`` stand for that toggle and its option. With ``fix``
    the toggle is switched off, whatever alternatives it has.
    """
    for name, toggle in all_toggles().items():
        option = situation.configuration.toggles[name]
        if trait in toggle.traits.get(option, ()):
            text, choices = toggle.alternative(option, trait)
            if fix:
                text, choices = fix, {name: toggle.off}
            return Blocked(reason.format(title=toggle.title, option=option), text, choices)
    return None


def matrix_dtype(situation: Situation) -> str:
    """Return the name of the matrix rate of a step's linear layers.

    The last toggle that decides on it wins: 8-bit codes are multiplied whatever the precision.
    """
    rates = [
        toggle.matrix_rate(situation.option(name), situation)
        for name, toggle in all_toggles().items()
        if toggle.matrix_rate is not None
    ]
    return [rate for rate in rates if rate][-1]


def why_unpredictable(situation: Situation) -> str:
    """Return why the time of a situation's step is unknown beforehand; empty if it is known."""
    return next(
        (
            toggle.unpredictable
            for name, toggle in all_toggles().items()
            if toggle.unpredictable and situation.option(name) != toggle.off
        ),
        "",
    )


def why_incomparable(first: Situation, second: Situation) -> str:
    """Return why the ratio of two situations' steps is unknown beforehand; empty if it is known."""
    return next(
        (
            toggle.incomparable
            for name, toggle in all_toggles().items()
            if toggle.incomparable and first.option(name) != second.option(name)
        ),
        "",
    )


def _check(toggle: Toggle) -> None:
    """Raise an error unless the catalogue can list the toggle."""
    protocol.round_trip(toggle.info(torch.device("cpu")))
    if toggle.default_option(torch.device("cpu")) not in toggle.options:
        raise ValueError("the default is none of its options")
    preferred = (option for options in toggle.presets.values() for option in options)
    if unknown_options := {*toggle.traits, *toggle.alternatives, *preferred} - {*toggle.options}:
        raise ValueError(f"it has no option {sorted(unknown_options)[0]!r}")
