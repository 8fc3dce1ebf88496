"""The toggles that change a field of the model's configuration, so that another model is built.

Each model has its own weights, drawn from the same seed; switching back continues with the earlier
weights. To prove such an option, a model with the same configuration and weights, but the other
value of the field, is compared: its outputs or its operators must differ (``_effects``).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import models
from models import ConfigurationError, Model
from models.layers.attention import RotaryCache
from models.layers.quantized_linear import QuantizedLinear
from sessions.model import Scalar
from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Stage,
    Toggle,
    as_default,
    effective,
    never_blocked,
    no_effect,
    unknown,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

Needs = Callable[[Any, Situation], Blocked | None]
Facts = Callable[[Any, "Observed"], str]
FOLLOW = "follow"
SWITCH: Mapping[str, tuple[str, Scalar]] = {"on": ("On", True), "off": ("Off", False)}


def _nothing_to_add(value: Any, observed: Observed) -> str:
    return ""


def field_toggle(
    field: str,
    title: str,
    help: str,
    values: Mapping[str, tuple[str, Scalar]] = SWITCH,
    *,
    name: str = "",
    group: str = "Model",
    needs: Needs = never_blocked,
    idle: Facts = _nothing_to_add,
    facts: Facts = _nothing_to_add,
    same_mathematics: bool = False,
) -> Toggle:
    """Return the toggle of one field; ``values`` are title and value by option, besides "follow".

    ``name`` is the toggle's name, if it differs from the field's. ``needs(value, situation)``
    returns why a value would have no effect, or is not allowed, in a situation that has the field.
    ``idle(value, observed)`` returns why the value had no effect in a variant that has run steps;
    empty if it had one. ``facts(value, observed)`` describes measurements of its effect, in
    addition to the comparison that every field has. ``same_mathematics``: the model computes the
    same with every value.
    """

    def configure(option: str, config: Any) -> dict[str, Scalar]:
        return {field: values[option][1]}

    def blocked(option: str, situation: Situation) -> Blocked | None:
        family = situation.family
        if not _has(situation.config, field):
            owners = [f.title for f in models.FAMILIES.values() if _has(f.config, field)]
            fix = f"Choose {' or '.join(owners)}." if owners else "No model family has it."
            return Blocked(f"{family.title} has no {field}", fix, absent=True)
        try:
            family.validate(dataclasses.replace(situation.config, **{field: values[option][1]}))
        except ConfigurationError as error:
            return _refused(str(error), {field: values[option][1]}, situation)
        return needs(values[option][1], situation)

    def evidence(option: str, observed: Observed) -> Finding:
        return _judged(field, values, values[option][1], observed, (needs, idle, facts))

    return Toggle(
        name=name or field,
        title=title,
        help=help,
        group=group,
        stage=Stage.MODEL,
        options={FOLLOW: "Model default"} | {o: shown for o, (shown, _) in values.items()},
        apply=_nothing,
        configure=configure,
        same_mathematics=same_mathematics,
        evidence=evidence,
        blocked=blocked,
    )


def _judged(
    field: str,
    values: Mapping[str, tuple[str, Scalar]],
    requested: Any,
    observed: Observed,
    by: tuple[Needs, Facts, Facts],
) -> Finding:
    """Compare the variant with one whose field has another value, and return what that changes."""
    from workbench.runner.toggles import _effects as effects

    needs, idle, facts = by
    situation = observed.situation
    built, declared = getattr(situation.config, field), getattr(situation.base, field)
    if blocked := needs(requested, situation):
        return no_effect(blocked.reason)
    if built != requested:
        return no_effect(f"the model is built with {field} = {built}")
    if why := idle(requested, observed):
        return no_effect(why)
    other = (
        declared if declared != requested else next(v for _, v in values.values() if v != requested)
    )
    note = "" if declared != requested else "the model's fields already have this value; "
    other_situation = dataclasses.replace(
        situation, config=dataclasses.replace(situation.config, **{field: other})
    )
    try:
        without = situation.family.build(other_situation.config)
    except ConfigurationError as error:
        if declared == requested:
            return as_default(
                f"the model has {field} = {declared}, because its other fields require it"
            )
        return unknown(f"no model with {field} = {other} can be built for the comparison: {error}")
    measured = facts(requested, observed)  # facts of the steps: the comparison calls the model
    comparison = effects.compare(observed, other_situation)
    if comparison is not None and comparison.identical:
        return no_effect(
            f"{note}outputs and operators are identical to those with {field} = {other}"
        )
    has_outputs = comparison is not None and comparison.error is not None
    differences = [] if has_outputs else _differences(_built(observed), without)
    work = "" if comparison is None else comparison.text()
    parts = [part for part in (*differences, work, measured) if part]
    text = f"{note}compared with {field} = {other}: {'; '.join(parts)}"
    return as_default(text) if note else effective(text)


def _built(observed: Observed) -> Model:
    """Return the variant's model; if it has ranks, a complete model of the same structure."""
    if observed.divided is None:
        return observed.model
    undivided: Model = observed.situation.family.build(observed.situation.config)
    return undivided


def _nothing(option: str, build: Build) -> None:
    """Do nothing: the configuration was changed before the build began."""


def _has(config: Any, field: str) -> bool:
    """Return True if a configuration, or its class, has the field; properties do not count."""
    return field in getattr(config, "__dataclass_fields__", {})


def _refused(sentence: str, fields: Mapping[str, Scalar], situation: Situation) -> Blocked:
    """Return the reason of the family, with a toggle to switch off if that solves the problem."""
    from workbench.runner.toggles import all_toggles  # avoids an import cycle

    for toggle in all_toggles().values():
        option = situation.option(toggle.name)
        if toggle.configure is None or option == toggle.off:
            continue
        changed = toggle.configure(option, situation.config)
        if changed.keys() & fields.keys() or not all(_has(situation.config, f) for f in changed):
            continue
        base = {name: getattr(situation.base, name) for name in changed}
        try:
            situation.family.validate(dataclasses.replace(situation.config, **base, **fields))
        except ConfigurationError:
            continue
        fix = f"Choose {toggle.title}: {toggle.options[toggle.off]}."
        return Blocked(sentence, fix, {toggle.name: toggle.off})
    return Blocked(sentence, "Change the model's fields, or choose Model default here.")


def _differences(model: Model, without: Model) -> list[str]:
    """Return in which modules and parameters two models differ."""
    differences = []
    modules, modules_without = _modules(model), _modules(without)
    for kind in dict.fromkeys([*modules, *modules_without]):
        if modules[kind] != modules_without[kind]:
            differences.append(f"{modules[kind]} {kind} instead of {modules_without[kind]}")
    parameters, parameters_without = _parameters(model), _parameters(without)
    if parameters != parameters_without:
        differences.append(f"{parameters:,} parameters instead of {parameters_without:,}")
    return differences


# Other toggles change these: whether layers share a table, and whether weights are quantized.
_NOT_COUNTED = (RotaryCache, QuantizedLinear)


def _modules(model: Model) -> Counter[str]:
    counts = Counter(type(m).__name__ for m in model.modules() if not isinstance(m, _NOT_COUNTED))
    counts["Linear"] += sum(isinstance(module, QuantizedLinear) for module in model.modules())
    return counts


def _parameters(model: Model) -> int:
    """Return how many parameters a model has, including quantized ones."""
    codes = [m.codes_NK for m in model.modules() if isinstance(m, QuantizedLinear)]
    return sum(tensor.numel() for tensor in (*model.parameters(), *codes))
