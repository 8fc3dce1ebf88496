"""The toggles that change a field of the model's configuration: another structure is built.

Each structure has weights of its own, drawn from the same seed; going back goes on with those that
were there. What proves such an option is what the built model contains, set against a model of the
same configuration that has the field the other way.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import models
from models import ConfigurationError, Model
from models.attention import RotaryCache
from models.quantized_linear import QuantizedLinear
from models.tensor_parallel_plan import WHOLE, divide
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
from workbench.runner.toggles.pipeline_parallel import pipeline_ranks_of
from workbench.runner.toggles.tensor_parallel import tensor_ranks_of

if TYPE_CHECKING:
    from workbench.runner.arm import Arm
    from workbench.runner.build import Build

FOLLOW = "follow"
SWITCH: Mapping[str, tuple[str, Scalar]] = {"on": ("On", True), "off": ("Off", False)}


def _always(value: Any, situation: Situation) -> Blocked | None:
    return None


def _never(value: Any, arm: Arm) -> str:
    return ""


def field_toggle(
    field: str,
    title: str,
    help: str,
    values: Mapping[str, tuple[str, Scalar]] = SWITCH,
    *,
    name: str = "",
    group: str = "Model",
    held: str = "",
    needs: Callable[[Any, Situation], Blocked | None] = _always,
    idle: Callable[[Any, Arm], str] = _never,
) -> Toggle:
    """The toggle of one field; ``values`` are title and value by option, besides "follow".

    ``name`` is the toggle's, and ``held`` the name under which modules hold the value, where these
    are not the field's. ``needs(value, situation)`` says why a value cannot have an effect, or must
    not, in a situation that has the field; ``idle(value, arm)`` why it had none in an arm that has
    stepped, or nothing.
    """

    def configure(option: str, config: Any) -> dict[str, Scalar]:
        return {field: values[option][1]}

    def blocked(option: str, situation: Situation) -> Blocked | None:
        family = situation.family
        if not _has(situation.config, field):
            owners = [f.title for f in models.FAMILIES.values() if _has(f.config, field)]
            fix = f"Choose {' or '.join(owners)}." if owners else "No family here has it."
            return Blocked(f"{family.title} has no {field}", fix, absent=True)
        try:
            family.validate(dataclasses.replace(situation.config, **{field: values[option][1]}))
        except ConfigurationError as error:
            return _refused(str(error), {field: values[option][1]}, situation)
        return needs(values[option][1], situation)

    def evidence(option: str, arm: Arm) -> Finding:
        situation, wanted = arm.situation, values[option][1]
        if why := idle(wanted, arm):
            return no_effect(why)
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
        if (ranks := tensor_ranks_of(situation)) > 1:
            divide(without, ranks, WHOLE)
        differs = _differences(_built(arm), without, field, held or field)
        if not differs:
            return no_effect(f"the model is built as with {field} = {other}{note}")
        return effective(f"against {field} = {other}: {'; '.join(differs)}{note}")

    return Toggle(
        name=name or field,
        title=title,
        help=help,
        group=group,
        stage=Stage.MODEL,
        options={FOLLOW: "As the model says"} | {o: shown for o, (shown, _) in values.items()},
        apply=_nothing,
        configure=configure,
        evidence=evidence,
        blocked=blocked,
    )


def _built(arm: Arm) -> Model:
    """The arm's model; of one whose ranks have stages the structure of the whole."""
    situation = arm.situation
    if pipeline_ranks_of(situation) == 1:
        return arm.model
    whole: Model = situation.family.build(situation.config)
    return whole


def _nothing(option: str, build: Build) -> None:
    """The configuration was changed before the build began."""


def _has(config: Any, field: str) -> bool:
    """Whether a configuration, or its class, has the field; a property is none."""
    return field in getattr(config, "__dataclass_fields__", {})


def _refused(sentence: str, fields: Mapping[str, Scalar], situation: Situation) -> Blocked:
    """A configuration that the family refuses, with the other toggle to give up if that is why."""
    from workbench.runner.toggles import all_toggles  # which is made of what calls this

    for toggle in all_toggles().values():
        option = situation.option(toggle.name)
        if toggle.configure is None or option == toggle.off:
            continue
        changed = toggle.configure(option, situation.config)
        if changed.keys() & fields.keys() or not all(_has(situation.config, f) for f in changed):
            continue
        said = {name: getattr(situation.base, name) for name in changed}
        try:
            situation.family.validate(dataclasses.replace(situation.config, **said, **fields))
        except ConfigurationError:
            continue
        fix = f"Leave {toggle.title} {toggle.options[toggle.off].lower()}."
        return Blocked(sentence, fix, {toggle.name: toggle.off})
    return Blocked(sentence, "Change the model's fields, or leave this as they say.")


def _differences(model: Model, without: Model, field: str, attribute: str) -> list[str]:
    """How a built model differs from one without the option, in words; empty if in nothing."""
    found = []
    mine, others = _modules(model), _modules(without)
    for kind in dict.fromkeys([*mine, *others]):
        if mine[kind] != others[kind]:
            found.append(f"{mine[kind]} {kind} and not {others[kind]}")
    counts = [_parameters(each) for each in (model, without)]
    if counts[0] != counts[1]:
        found.append(f"{counts[0]:,} parameters and not {counts[1]:,}")
    settings = [Counter(_settings(each, attribute)) for each in (model, without)]
    if settings[0] != settings[1]:
        held = ", ".join(f"{count} with {value}" for value, count in settings[0].items())
        found.append(f"modules that hold {field}: {held or 'none'}")
    shapes = [_buffers(each) for each in (model, without)]
    if not found and shapes[0] != shapes[1]:
        changed = {name for name, _ in shapes[0].items() ^ shapes[1].items()}
        found.append(f"{len(changed)} buffers differ ({min(changed)})")
    return found


# Other toggles decide on these: whether layers share a table, and by what a linear multiplies.
_OTHERS = (RotaryCache, QuantizedLinear)


def _modules(model: Model) -> Counter[str]:
    found = Counter(type(m).__name__ for m in model.modules() if not isinstance(m, _OTHERS))
    found["Linear"] += sum(isinstance(module, QuantizedLinear) for module in model.modules())
    return found


def _parameters(model: Model) -> int:
    """How many numbers a model has learned, those that codes stand for among them."""
    codes = [m.codes_NK for m in model.modules() if isinstance(m, QuantizedLinear)]
    return sum(each.numel() for each in (*model.parameters(), *codes))


def _buffers(model: Model) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.{name}": tuple(buffer.shape)
        for prefix, module in model.named_modules()
        if not isinstance(module, _OTHERS)
        for name, buffer in module.named_buffers(recurse=False)
    }


def _settings(model: Model, attribute: str) -> list[str]:
    """What each module that has an attribute of that name, or rules that have it, holds there."""
    found = []
    for module in model.modules():
        held = getattr(module, attribute, None)
        if held is None:
            held = getattr(getattr(module, "rules", None), attribute, None)
        if isinstance(held, bool | int | float | str):
            found.append(str(held))
        elif held is not None and not isinstance(held, nn.Module | torch.Tensor):
            found.append(type(held).__name__)
    return found
