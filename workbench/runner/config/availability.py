"""Options that cannot be used in a situation, why, and what would enable them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from models import Model
from workbench.protocol import Blocked
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Situation
from workbench.runner.toggles import Toggle, all_toggles
from workbench.runner.toggles._patch_toggle import brought
from workbench.runner.user_models import user_model

_NO_MODULES = Blocked(
    "acts on no module of this model",
    "The toggle's help, which --json prints, says what it recognizes.",
)


def why_blocked(name: str, option: str, situation: Situation) -> Blocked | None:
    """Return why an option of a toggle cannot be used in this situation."""
    toggle = all_toggles()[name]
    if option == toggle.off:
        return None
    if situation.is_own_model and (why := _not_of(toggle, situation)):
        return Blocked(*why, {name: toggle.off}, absent=True)
    return toggle.blocked(option, situation)


def _not_of(toggle: Toggle, situation: Situation) -> tuple[str, str] | None:
    """Return why a toggle does not affect the user's own model, and what to do."""
    if toggle.bundled:
        return toggle.bundled, "Choose a bundled family."
    if not toggle.operators:
        return None
    called = set(user_model.called(situation.config))
    if toggle.default is None:  # a choice for all kernels would not leave them automatic
        called |= brought(situation)
    if not called.isdisjoint(toggle.operators):
        return None
    affected = f"kernels.{toggle.operators[0]}"
    if len(toggle.operators) > 1:
        affected = "operators of kernels"
    fix = "Replace modules of your model (toggles of Your model), or choose a bundled family."
    return f"affects only {affected}, which your file does not call", fix


def configured(situation: Situation) -> Any:
    """Return the model's configuration as the toggles change it; a blocked one changes nothing.

    An option may become possible by the change of a later one, so passes repeat until none changes.
    """
    waiting = [
        name
        for name, toggle in all_toggles().items()
        if toggle.configure is not None and situation.option(name) != toggle.off
    ]
    count = -1
    while count != len(waiting):
        count = len(waiting)
        for name in tuple(waiting):
            option, configure = situation.option(name), all_toggles()[name].configure
            if configure is None or why_blocked(name, option, situation):
                continue
            config = dataclasses.replace(situation.config, **configure(option, situation.config))
            situation = dataclasses.replace(situation, config=config)
            waiting.remove(name)
    return situation.config


def require_unblocked(situation: Situation) -> None:
    """Raise ``Mistake`` for the first requested option that cannot be used."""
    for name in all_toggles():
        option = situation.option(name)
        if why := why_blocked(name, option, situation):
            raise Mistake(f"toggle {name}={option} cannot be used: {why.reason}. {why.fix}")


def blocked_options(
    situation: Situation, model: Model | None = None
) -> dict[str, dict[str, Blocked]]:
    """Return every option that cannot be used in this situation, by toggle.

    If two options exclude each other and only one toggle knows why, both are blocked. A fix
    names all toggles that it must change. A user's ``model``, once it is built, blocks the options
    that act on none of its modules.
    """
    blocked: dict[str, dict[str, Blocked]] = {}
    chosen = usable_choices(situation)
    for name, toggle in all_toggles().items():
        for option in toggle.options:
            why = why_unusable(name, option, situation, chosen)
            if why:
                complete = _complete(why, name, option, situation, chosen)
                blocked.setdefault(name, {})[option] = complete
            elif (
                model is not None and option != toggle.off and not toggle.has_modules(option, model)
            ):
                blocked.setdefault(name, {})[option] = _NO_MODULES
    return blocked


def usable_choices(situation: Situation) -> dict[str, str]:
    """Return the options by toggle that a situation has and that nothing blocks, without "off"."""
    return {
        name: option
        for name, toggle in all_toggles().items()
        if (option := situation.option(name)) != toggle.off
        and not why_blocked(name, option, situation)
    }


def why_unusable(
    name: str, option: str, situation: Situation, chosen: Mapping[str, str]
) -> Blocked | None:
    """Return why an option is blocked, or which of the ``chosen`` options it would block."""
    return why_blocked(name, option, situation) or _opposed(name, option, situation, chosen)


def _opposed(
    name: str, option: str, situation: Situation, chosen: Mapping[str, str]
) -> Blocked | None:
    """Return the first ``chosen`` option of another toggle that this option would block, and why.

    Return None for an option that is itself chosen, or that leaves the model alone.
    """
    if option in (all_toggles()[name].off, situation.option(name)):
        return None
    changed = switched(situation, {name: option})
    for other, its_option in chosen.items():
        if other != name and (why := why_blocked(other, its_option, changed)):
            toggle = all_toggles()[other]
            reason = f"cannot be combined with {toggle.title}: {why.reason}"
            fix = f"Choose {toggle.title}: {toggle.options[toggle.off]}."
            return Blocked(reason, fix, {other: toggle.off})
    return None


def _complete(
    why: Blocked, name: str, option: str, situation: Situation, chosen: Mapping[str, str]
) -> Blocked:
    """Return the reason with a fix that also switches off ``chosen`` options that it would block.

    If the fix needs an option that is blocked too, return that option's reason.
    """
    toggles = all_toggles()
    if not why.set or not why.set.keys() <= toggles.keys():
        return why
    needed, given_up = dict(why.set), dict[str, str]()
    while True:
        fixed = switched(situation, {**given_up, **needed, name: option})
        inner = next(
            filter(None, (why_blocked(other, needed[other], fixed) for other in needed)), None
        )
        left = chosen.keys() - {name, *needed, *given_up}
        switched_off = {
            other: toggles[other].off for other in left if why_blocked(other, chosen[other], fixed)
        }
        if inner is not None:
            if not inner.set or not inner.set.keys() <= toggles.keys() - needed.keys():
                return inner
            needed |= inner.set
            why = msgspec.structs.replace(why, fix=f"{why.fix} {inner.fix}")
        elif switched_off:
            given_up |= switched_off
        else:
            break
    fix = why.fix
    if given_up:
        titles = " and ".join(sorted(toggles[other].title for other in given_up))
        fix = f"{fix} This also switches off {titles}."
    return msgspec.structs.replace(why, fix=fix, set={**needed, **given_up})


def switched(situation: Situation, options: Mapping[str, str]) -> Situation:
    """Return the situation with other options of some toggles."""
    toggles = {**situation.configuration.toggles, **options}
    configuration = msgspec.structs.replace(situation.configuration, toggles=toggles)
    changed = dataclasses.replace(situation, configuration=configuration)
    if all(all_toggles()[name].configure is None for name in options):
        return changed
    config = configured(dataclasses.replace(changed, config=situation.base))
    return dataclasses.replace(changed, config=config)
