"""Values that a configuration may hold: names, settings, the seed, limits of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

import models
from kernels import hardware
from sessions.model import Configuration, Scalar
from workbench import protocol
from workbench.protocol import MOST_PAIRING_SHARE, OR, Field, Start
from workbench.protocol.catalogue import expected
from workbench.runner.failures import Mistake
from workbench.runner.toggles import all_toggles
from workbench.runner.user_models import user_model
from workbench.runner.workloads import Workload

LONGEST_S = 1e9
FIRST_FAMILY = "hydra"  # the first start chooses it, and the demo runs it

Value = TypeVar("Value")
Comparing = (  # commands with a budget and widths
    protocol.Compare | protocol.Attribute | protocol.Optimize | protocol.Validate | protocol.Scale
)


def check_choice(configuration: Configuration, field: str, value: Scalar) -> None:
    """Raise ``Mistake`` or ``models.ConfigurationError`` for a value that is never possible.

    ``field`` is a name as in ``Configuration.replaced``: the preset, the workload, a toggle, or a
    model's field that is a choice. Other fields are not checked here.
    """
    family = known("family", configuration.family, families())
    group, _, name = field.partition(".")
    if field == "preset":
        known(field, str(value), family.presets)
    elif field == "workload":
        known(f"{field} of {family.name}", str(value), dict.fromkeys(family.workloads))
    elif group == "model":
        family.check_choice(name, value)
    elif group == "toggles":
        toggle = known("toggle", name, all_toggles())
        for choice in str(value).split(OR):
            known(f"toggle {name}", choice, toggle.options)


def families() -> dict[str, models.Family]:
    """Return the bundled families by name, and the user's own models; the default is first."""
    first = {FIRST_FAMILY: models.FAMILIES[FIRST_FAMILY]}
    return {**first, **models.FAMILIES, user_model.FAMILY.name: user_model.FAMILY}


def default_preset(family: models.Family, device: torch.device) -> str:
    """Return the preset that a first start on this device chooses."""
    return family.default_preset(hardware.of(device).total_bytes, device.type)


def known(field: str, name: str, allowed: Mapping[str, Value]) -> Value:
    """Return the value of a name; raise ``Mistake`` for a name that is not allowed."""
    if name not in allowed:
        raise Mistake(f"{field}: unknown {name!r}; expected {expected(name, allowed)}")
    return allowed[name]


def complete_settings(
    requested: Mapping[str, Scalar], workload: Workload, suggested: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """Return every setting of a workload: requested, suggested by the preset, or the default."""
    fields = {field.name: field for field in workload.fields}
    for name in requested:
        known(f"setting of {workload.name}", name, fields)
    return {
        name: _number(field, requested.get(name, suggested.get(name, field.default)))
        for name, field in fields.items()
    }


def _number(field: Field, value: Scalar) -> int | float:
    """Return ``value`` as the field's kind, an integer or a real number; raises ``Mistake``."""
    return _real(field, value) if isinstance(field.default, float) else _integer(field, value)


def _real(field: Field, value: Scalar) -> float:
    low, high = field.minimum or 0.0, field.maximum or float("inf")
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        number = float("nan")
    if not low <= number <= high:  # NaN fails this test too
        raise Mistake(
            f"setting {field.name} = {_shown(value)} is not a number from {low:g} to {high:g}"
        )
    return number


def _integer(field: Field, value: Scalar) -> int:
    low, high = field.minimum or 0, field.maximum or float("inf")
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise Mistake(
            f"setting {field.name} = {_shown(value)} is not a whole number from {low:.0f} to "
            f"{high:.0f}"
        ) from None
    if not low <= number <= high:
        raise Mistake(
            f"setting {field.name} = {_shown(number)} is outside of {low:.0f} to {high:.0f}"
        )
    return number


def check_seed(seed: int) -> None:
    """Raise ``Mistake`` for a seed that no generator accepts."""
    if not 0 <= seed < 2**63:
        raise Mistake(f"seed = {_shown(seed)} is outside of 0 to 2^63 - 1")


def _shown(value: Scalar) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def check_seconds(name: str, seconds: float) -> None:
    """Raise ``Mistake`` for a duration that is not above 0, or is too long."""
    if not 0 < seconds <= LONGEST_S:
        raise Mistake(f"{name} = {seconds:g}: expected more than 0 and at most {LONGEST_S:g}")


def check_comparison(command: Comparing) -> None:
    """Raise ``Mistake`` for a budget or a width that no comparison can have."""
    check_seconds("budget_s", command.budget_s)
    for name in ("region", "floor", "half_width"):
        if not 0 <= (value := getattr(command, name, 0.0)) < 1:
            raise Mistake(f"{name} = {value:g}: expected at least 0 and less than 1")


def check_limits(start: Start) -> None:
    """Raise ``Mistake`` for a run without steps or time, or too large a share for pairing."""
    if start.steps is not None and start.steps < 1:
        raise Mistake(f"steps = {_shown(start.steps)}: a run has at least one step")
    if start.seconds is not None:
        check_seconds("seconds", start.seconds)
    if not 0 <= start.pairing_share <= MOST_PAIRING_SHARE:
        share = f"pairing_share = {start.pairing_share:g}"
        raise Mistake(f"{share} is outside of 0 to {MOST_PAIRING_SHARE:g}")
