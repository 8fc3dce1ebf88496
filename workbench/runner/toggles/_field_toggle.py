"""The toggles that change a field of the model's configuration: another structure is built.

Each structure has weights of its own, drawn from the same seed; going back goes on with those that
were there. What proves such an option is what the built model contains, set against a model of the
same configuration that has the field the other way.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import models
from models import ConfigurationError, Model
from sessions.model import Scalar
from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.arm import Arm, Build

FOLLOW = "follow"
SWITCH: Mapping[str, tuple[str, Scalar]] = {"on": ("On", True), "off": ("Off", False)}


def field_toggle(
    field: str, title: str, help: str, values: Mapping[str, tuple[str, Scalar]] = SWITCH
) -> Toggle:
    """The toggle of one field; ``values`` are title and value by option, besides "follow"."""

    def configure(option: str, config: Any) -> dict[str, Scalar]:
        return {field: values[option][1]}

    def blocked(option: str, situation: Situation) -> Blocked | None:
        family = situation.family
        if not hasattr(situation.config, field):
            owners = [f.title for f in models.FAMILIES.values() if hasattr(f.config, field)]
            fix = f"Choose {' or '.join(owners)}." if owners else "No family here has it."
            return Blocked(f"{family.title} has no {field}", fix)
        try:
            family.validate(
                dataclasses.replace(situation.config, **configure(option, situation.config))
            )
        except ConfigurationError as error:
            return Blocked(str(error), "Change the model's fields, or leave this as they say.")
        return None

    def evidence(option: str, arm: Arm) -> Finding:
        situation, wanted = arm.situation, values[option][1]
        said = getattr(situation.base, field)
        other = said if said != wanted else next(v for _, v in values.values() if v != wanted)
        note = "" if said != wanted else " (as the model's fields say already)"
        try:
            without = situation.family.build(
                dataclasses.replace(situation.config, **{field: other})
            )
        except ConfigurationError as error:
            if said == wanted:
                return effective(f"the model has {field} = {said}, which its other fields need")
            return Finding("unknown", f"there is no model of {field} = {other} beside it: {error}")
        differs = _differences(arm.model, without, field)
        if not differs:
            return no_effect(f"the model is built as with {field} = {other}{note}")
        return effective(f"against {field} = {other}: {'; '.join(differs)}{note}")

    return Toggle(
        name=field,
        title=title,
        help=help,
        group="Model",
        stage=Stage.MODEL,
        options={FOLLOW: "As the model says"} | {o: shown for o, (shown, _) in values.items()},
        apply=_nothing,
        configure=configure,
        evidence=evidence,
        blocked=blocked,
    )


def _nothing(option: str, build: Build) -> None:
    """The configuration was changed before the build began."""


def _differences(model: Model, without: Model, field: str) -> list[str]:
    """How a built model differs from one without the option, in words; empty if in nothing."""
    found = []
    mine, others = _modules(model), _modules(without)
    for kind in dict.fromkeys([*mine, *others]):
        if mine[kind] != others[kind]:
            found.append(f"{mine[kind]} {kind} and not {others[kind]}")
    counts = [sum(p.numel() for p in each.parameters()) for each in (model, without)]
    if counts[0] != counts[1]:
        found.append(f"{counts[0]:,} parameters and not {counts[1]:,}")
    settings = [Counter(_settings(each, field)) for each in (model, without)]
    if settings[0] != settings[1]:
        held = ", ".join(f"{count} with {value}" for value, count in settings[0].items())
        found.append(f"modules that hold {field}: {held or 'none'}")
    shapes = [{n: tuple(b.shape) for n, b in each.named_buffers()} for each in (model, without)]
    if not found and shapes[0] != shapes[1]:
        changed = {name for name, _ in shapes[0].items() ^ shapes[1].items()}
        found.append(f"{len(changed)} buffers differ ({min(changed)})")
    return found


def _modules(model: Model) -> Counter[str]:
    return Counter(type(module).__name__ for module in model.modules())


def _settings(model: Model, field: str) -> list[str]:
    """What each module that has an attribute of the field's name holds there."""
    held = [getattr(module, field, None) for module in model.modules()]
    return [str(value) for value in held if isinstance(value, bool | int | float | str)]
