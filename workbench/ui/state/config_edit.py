"""Edits of a configuration: every choice returns another complete, consistent configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from sessions.model import HF, OWN, Configuration, Scalar, split_source
from workbench.protocol import Catalogue, FamilyInfo, Field, ToggleInfo, WorkloadInfo

# Fields of the family and the workload that say nothing about such a file.
_HIDDEN = {("model", "source"), ("model", "sha256"), ("settings", "sequence")}

_Item = TypeVar("_Item", FamilyInfo, Field, ToggleInfo, WorkloadInfo)


def first(catalogue: Catalogue) -> Configuration | None:
    """Return a configuration of the first family: this device's preset, default options."""
    family = next((family for family in catalogue.families if family.workloads), None)
    if family is None:
        return None
    blank = Configuration(
        family=family.name,
        preset=family.default_preset,
        workload=family.workloads[0],
        toggles={toggle.name: toggle.default for toggle in catalogue.toggles},
    )
    return with_workload(catalogue, blank, blank.workload)


def adopt(catalogue: Catalogue, configuration: Configuration) -> Configuration:
    """Return the configuration for another catalogue.

    Toggles are added and removed as it needs. Values of another type than their field's are left
    out: a file of settings or of a session may hold anything.
    """
    model, settings = configuration.model, configuration.settings
    if not missing(catalogue, configuration):
        family = family_of(catalogue, configuration.family)
        workload = workload_of(catalogue, configuration.workload)
        model = _drop_other_types(model, family.fields)
        settings = _drop_other_types(settings, workload.fields)
    toggles = {}
    for toggle in catalogue.toggles:
        option = configuration.toggles.get(toggle.name, toggle.default)
        known = any(offered.name == option for offered in toggle.options)
        toggles[toggle.name] = option if known else toggle.default
    return msgspec.structs.replace(configuration, model=model, settings=settings, toggles=toggles)


def _drop_other_types(values: Mapping[str, Scalar], fields: Sequence[Field]) -> dict[str, Scalar]:
    """Return the values without those that have another type than their field."""
    defaults = {field.name: field.default for field in fields}
    return {
        name: value
        for name, value in values.items()
        if name not in defaults or _kind(value) is _kind(defaults[name])
    }


def _kind(value: Scalar) -> type:
    """Return the type of a value; integers and floats count as one type."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float if is_number else type(value)


def with_own_model(catalogue: Catalogue, configuration: Configuration, path: str) -> Configuration:
    """Return the configuration for a model of the user's file, with every toggle switched off."""
    changed = with_family(catalogue, configuration, OWN)
    toggles = {toggle.name: toggle.options[0].name for toggle in catalogue.toggles}
    return msgspec.structs.replace(changed, model={"source": path}, toggles=toggles)


def applies(family: str, group: str, field: str) -> bool:
    """Return True if a field means something for a family."""
    return family != OWN or (group, field) not in _HIDDEN


def lacks_own_model(configuration: Configuration) -> bool:
    """Return True if no file was chosen yet for a model of the user's own."""
    return configuration.family == OWN and not configuration.model.get("source")


def with_family(catalogue: Catalogue, configuration: Configuration, name: str) -> Configuration:
    """Return the configuration for another family, with its default preset."""
    family = family_of(catalogue, name)
    workload = configuration.workload
    if workload not in family.workloads:
        workload = family.workloads[0]
    changed = msgspec.structs.replace(
        configuration, family=name, preset=family.default_preset, model={}
    )
    return with_workload(catalogue, changed, workload)


def with_preset(catalogue: Catalogue, configuration: Configuration, name: str) -> Configuration:
    """Return the configuration with another preset, its model fields and matching settings."""
    changed = msgspec.structs.replace(configuration, preset=name, model={})
    return with_workload(catalogue, changed, configuration.workload)


def with_workload(catalogue: Catalogue, configuration: Configuration, name: str) -> Configuration:
    """Return the configuration with another workload and settings for the preset and device."""
    family = family_of(catalogue, configuration.family)
    suggested = family.suggested.get(configuration.preset, {})
    fields = workload_of(catalogue, name).fields
    settings = {field.name: suggested.get(field.name, field.default) for field in fields}
    return msgspec.structs.replace(configuration, workload=name, settings=settings)


def with_model(
    catalogue: Catalogue, configuration: Configuration, name: str, value: Scalar
) -> Configuration:
    """Return the configuration with a model field; the preset's value is no override."""
    family = family_of(catalogue, configuration.family)
    model = {**configuration.model, name: value}
    if value == preset_value(family, configuration.preset, name):
        del model[name]
    return msgspec.structs.replace(configuration, model=model)


def with_setting(configuration: Configuration, name: str, value: Scalar) -> Configuration:
    """Return the configuration with a setting of the workload."""
    settings = {**configuration.settings, name: value}
    return msgspec.structs.replace(configuration, settings=settings)


def choices(configuration: Configuration) -> dict[str, str]:
    """Return the choices as text: every toggle, the workload, the batch."""
    batch = configuration.settings.get("batch")
    named = {} if batch is None else {"batch": str(batch)}
    return {**configuration.toggles, "workload": configuration.workload, **named}


def choice_text(catalogue: Catalogue, changed: dict[str, str]) -> str:
    """Return the changed choices with their titles, such as "AdamW: Fused"."""
    parts = []
    for name, option in changed.items():
        if name in ("workload", "batch"):
            parts.append(f"{name.capitalize()}: {option}")
        else:
            toggle = toggle_of(catalogue, name)
            parts.append(f"{toggle.title}: {option_title(toggle, option)}")
    return ", ".join(parts)


def with_toggles(configuration: Configuration, toggles: dict[str, str]) -> Configuration:
    """Return the configuration with some toggles changed."""
    return msgspec.structs.replace(configuration, toggles={**configuration.toggles, **toggles})


def ran_as(requested: Configuration, ran: Configuration) -> bool:
    """Return True if the configuration that ran is the requested one."""
    return (
        _same_model(requested, ran) and msgspec.structs.replace(requested, model=ran.model) == ran
    )


def _same_model(requested: Configuration, ran: Configuration) -> bool:
    """Return True if both have one model; the runner completes the source of a user's model."""
    if OWN not in (requested.family, ran.family):
        return requested.model == ran.model
    source = str(requested.model.get("source", ""))
    is_hf = source.startswith(HF)
    source = source.removeprefix(HF).removeprefix("~").removeprefix("./")
    if not is_hf:
        source = ":".join(split_source(source))
    other_fields = {
        name: value for name, value in requested.model.items() if name != "source" and value != ""
    }
    return (
        str(ran.model.get("source", "")).endswith(source)
        and other_fields.items() <= ran.model.items()
    )


def of_one_run(first: Configuration, second: Configuration) -> bool:
    """Return True if family and workload agree: the options that are blocked depend on both."""
    return (first.family, first.workload) == (second.family, second.workload)


def other_parts(requested: Configuration, ran: Configuration) -> list[str]:
    """Return the parts that differ, other than settings and toggles."""
    parts = ("preset", "workload", "data", "seed")
    differing = [name for name in parts if getattr(requested, name) != getattr(ran, name)]
    return differing if _same_model(requested, ran) else [*differing, "model fields"]


def missing(catalogue: Catalogue | None, configuration: Configuration) -> str:
    """Return which family or workload of a configuration the catalogue lacks; empty if none.

    A benchmark of kernels has no family; other versions and plug-ins have others.
    """
    families = [] if catalogue is None else catalogue.families
    family = next((info for info in families if info.name == configuration.family), None)
    if family is None:
        return f"family {configuration.family!r}"
    known = configuration.workload in family.workloads
    return "" if known else f"workload {configuration.workload!r}"


def family_of(catalogue: Catalogue, name: str) -> FamilyInfo:
    """Return the family of a name; raise ``KeyError`` if there is none."""
    return _named(catalogue.families, name, "family")


def workload_of(catalogue: Catalogue, name: str) -> WorkloadInfo:
    """Return the workload of a name; raise ``KeyError`` if there is none."""
    return _named(catalogue.workloads, name, "workload")


def toggle_of(catalogue: Catalogue, name: str) -> ToggleInfo:
    """Return the toggle of a name; raise ``KeyError`` if there is none."""
    return _named(catalogue.toggles, name, "toggle")


def option_title(toggle: ToggleInfo, name: str) -> str:
    """Return an option's title, or its name if the catalogue has none."""
    return next((option.title for option in toggle.options if option.name == name), name)


def preset_value(family: FamilyInfo, preset: str, name: str) -> Scalar:
    """Return a model field's value in a preset."""
    field = _named(family.fields, name, "model field")
    return family.presets.get(preset, {}).get(name, field.default)


def _named(items: Sequence[_Item], name: str, kind: str) -> _Item:
    for item in items:
        if item.name == name:
            return item
    raise KeyError(f"no {kind} {name!r}; there are {[item.name for item in items]}")
