"""Operators that a model never calls, as far as its family knows before a run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

from models import ConfigField, ConfigurationError, Family
from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import Situation
from workbench.runner.workloads import all_workloads


class Fix(NamedTuple):
    """A change that makes a model call an operator; no ``choices``: only a person can make it."""

    text: str  # a sentence for users
    choices: dict[str, str]
    workloads: tuple[str, ...]  # workloads in which the model would call it


def not_called(operator: str, situation: Situation) -> Blocked | None:
    """Return why no step of this situation calls the operator, and a choice that would change it.

    Return None if it is called, or if the family does not list the operators that it calls.
    """
    family, config, workload = situation.family, situation.config, situation.workload.name
    if family.operators is None or operator in family.operators(config, workload):
        return None
    workloads = [name for name in family.workloads if operator in family.operators(config, name)]
    if workloads:
        *titles, last = (all_workloads()[name].title for name in workloads)
        choice = f"{', '.join(titles)} or {last}" if titles else last
        return Blocked(
            f"{family.title} uses it only in another workload",
            f"Choose {choice}.",
            {"workload": workloads[0]},
        )
    fix = _fixes(family, config).get(operator)
    if fix is None:
        reason = f"{family.title} never uses it"
        return Blocked(reason, "Choose another family.", absent=True)
    choices = dict(fix.choices)
    if choices and workload not in fix.workloads:
        choices["workload"] = fix.workloads[0]
    return Blocked(f"{family.title} with these fields never uses it", fix.text, choices)


@functools.lru_cache(maxsize=16)
def _fixes(family: Family, config: Any) -> dict[str, Fix]:
    """Return, by operator, the first option that makes the model call it, else the first field."""
    from workbench.runner.toggles import all_toggles  # avoids an import cycle

    fixes: dict[str, Fix] = {}
    known = family.fields()
    for toggle in all_toggles().values():
        for option in list(toggle.options)[1:] if toggle.configure else ():
            assert toggle.configure is not None
            fields = toggle.configure(option, config)
            if not fields.keys() <= {field.name for field in known}:
                continue
            changed = dataclasses.replace(config, **fields)
            try:
                family.validate(changed)
            except ConfigurationError:
                continue
            text = f"Choose {toggle.title}: {toggle.options[option]}."
            _add(fixes, family, changed, text, {toggle.name: option})
    for field in known:
        for value in _other_values(field, getattr(config, field.name)):
            changed = dataclasses.replace(config, **{field.name: value})
            _add(fixes, family, changed, f"Change the model's field {field.title}.", {})
    return fixes


def _add(
    fixes: dict[str, Fix], family: Family, config: Any, text: str, choices: dict[str, str]
) -> None:
    """Add a fix for each operator that a model of ``config`` calls and that has none yet."""
    assert family.operators is not None
    workloads_by_operator: dict[str, list[str]] = {}
    for workload in family.workloads:
        for operator in family.operators(config, workload):
            workloads_by_operator.setdefault(operator, []).append(workload)
    for operator, workloads in workloads_by_operator.items():
        fixes.setdefault(operator, Fix(text, choices, tuple(workloads)))


def _other_values(field: ConfigField, value: Any) -> tuple[Any, ...]:
    """Return other values of a field on which a choice of operators may depend."""
    if field.choices:
        return field.choices
    if field.kind is bool:
        return (not value,)
    return (value + 1,) if field.kind is int else ()
