"""Stored differences between identical arms on this machine; a verdict claims nothing smaller.

One file in the state folder holds floors by machine and by kind. Another device, driver,
torch, CPU, number of cores or power limit of the GPU makes another machine, which has to be
calibrated again: the host launches what the GPU runs. Hosts that are alike in all of these share
their floors. A kind is a family (or a user's own model), a workload and a precision: short steps
scatter more than long ones. A kind that was never calibrated has the machine's largest floor, and
the verdict says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from sessions.model import OWN, Configuration, PairedComparison
from sessions.numbers import counted, margin_text, moment
from sessions.verdicts.verdict import MIN_PAIRS
from workbench import state_files, state_folder
from workbench.protocol import Attribute, Catalogue, Compare, Optimize, Scale, Start, Validate

PRECISION = "precision"  # the toggle that a kind names
Judging = TypeVar("Judging", Compare, Attribute, Optimize, Validate, Scale, Start)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A floor, and the comparison of identical arms that it comes from."""

    device: str
    software: str = ""  # driver and torch
    host: str = ""  # CPU, cores, power limit; empty in files from before hosts were recorded
    floor: float  # a share: 0.004 is 0.4 %
    created: float  # Unix time
    pairs: int
    seconds: float
    measured_with: str  # the configuration's title
    kind: str = ""  # as ``kind_of`` says; empty in files from before kinds were recorded
    disturbed: str = ""  # the clause that names other users of the device


def path() -> Path:
    """Return the path of the file of floors."""
    return state_folder.path() / "calibration.json"


def load(catalogue: Catalogue) -> list[Calibration]:
    """Return all readable calibrations of a runner's machine, the largest floor first.

    A calibration without a recorded host applies until this host has its own of that kind.
    """
    machine, host = (catalogue.device_title, _software(catalogue)), _host(catalogue)
    alike = [row for row in _load_all().values() if (row.device, row.software) == machine]
    known = {row.kind for row in alike if row.host == host}
    current = [row for row in alike if row.host == host or (not row.host and row.kind not in known)]
    return sorted(current, key=lambda calibration: -calibration.floor)


def kind_of(catalogue: Catalogue, configuration: Configuration) -> str:
    """Return a configuration's kind: configurations of one family, workload and precision.

    A user's own models are as different as families are.
    """
    defaults = {toggle.name: toggle.default for toggle in catalogue.toggles}
    precision = configuration.toggles.get(PRECISION, defaults.get(PRECISION, ""))
    of_family = f"{configuration.family} {configuration.workload}"
    kind = configuration.title if configuration.family == OWN else of_family
    return f"{kind} in {precision}" if precision else kind


def choose(known: Sequence[Calibration], kind: str) -> Calibration | None:
    """Return the calibration of a kind, else the one with the largest floor, else None."""
    same_kind = [calibration for calibration in known if calibration.kind == kind]
    return next(iter(same_kind or known), None)


def respected(catalogue: Catalogue, command: Judging) -> Judging:
    """Return the command with the floor that its claims must exceed.

    The largest of the kinds' floors counts. ``floor_note`` says which floor is used if a kind has
    none; without any calibration the floor is 0.
    """
    known = load(catalogue)
    kinds = dict.fromkeys(
        kind_of(catalogue, configuration) for configuration in _compared(catalogue, command)
    )
    chosen = {
        kind: calibration for kind in kinds if (calibration := choose(known, kind)) is not None
    }
    command.floor = max((calibration.floor for calibration in chosen.values()), default=0.0)
    borrowed = [kind for kind, calibration in chosen.items() if calibration.kind != kind]
    if borrowed:
        command.floor_note = (
            f"{' and '.join(borrowed)} {'was' if len(borrowed) == 1 else 'were'} never calibrated, "
            f"so the largest noise floor of this machine is used: {margin_text(known[0].floor)} "
            f"with {known[0].measured_with}"
        )
    return command


def _compared(catalogue: Catalogue, command: Judging) -> list[Configuration]:
    """Return the configurations among which a command says which is faster."""
    if isinstance(command, Compare):
        return [command.base, command.other]
    if isinstance(command, Attribute):
        return [command.base, _with(command.base, command.toggles)]
    if isinstance(command, Optimize | Scale):
        return [command.base]
    if isinstance(command, Start):
        return [command.configuration]
    all_off = {toggle.name: toggle.options[0].name for toggle in catalogue.toggles}
    return [command.configuration, _with(command.configuration, all_off)]


def _with(configuration: Configuration, toggles: dict[str, str]) -> Configuration:
    return msgspec.structs.replace(configuration, toggles={**configuration.toggles, **toggles})


def calibrated(
    catalogue: Catalogue, comparison: PairedComparison, configuration: Configuration
) -> Calibration:
    """Return the calibration of a kind from a comparison of identical arms; raises as ``floor``."""
    return Calibration(
        device=catalogue.device_title,
        software=_software(catalogue),
        host=_host(catalogue),
        floor=floor(comparison),
        created=time.time(),
        pairs=comparison.facts["pairs"],
        seconds=comparison.facts["seconds"],
        measured_with=configuration.title,
        kind=kind_of(catalogue, configuration),
        disturbed=comparison.facts.get("others", ""),
    )


def floor(comparison: PairedComparison) -> float:
    """Return the largest difference that identical arms may have: the interval's farther end.

    Raises ``ValueError`` with one sentence where too few pairs were measured to say.
    """
    pairs = comparison.facts.get("pairs", 0)
    if pairs < MIN_PAIRS or not comparison.low > 0:
        seconds = comparison.facts.get("seconds", math.nan)
        needed_s = math.ceil(seconds / pairs * MIN_PAIRS) if pairs and seconds > 0 else None
        allow = "more time" if needed_s is None else f"about {needed_s} s in total"
        raise ValueError(
            f"measured {counted(pairs, 'pair')}, but at least {MIN_PAIRS} are needed; allow {allow}"
        )
    return max(comparison.high, 1 / comparison.low) - 1


def store(calibration: Calibration) -> None:
    """Store a calibration; it replaces an earlier one of its kind. Raises ``OSError``."""
    machine = filter(None, (calibration.device, calibration.software, calibration.host))
    name = ": ".join(filter(None, (", ".join(machine), calibration.kind)))
    state_files.write(path(), name, calibration, _load_all())


def unstored(error: OSError) -> str:
    """Return why a floor could not be stored, and what to do."""
    return state_folder.unwritten(path(), error)


def describe(calibration: Calibration) -> str:
    """Return the calibration in one line."""
    day = moment(calibration.created, "%Y-%m-%d")
    device_and_host = ", ".join(filter(None, (calibration.device, calibration.host)))
    return (
        f"identical arms differ by up to {margin_text(calibration.floor)} on {device_and_host} "
        f"({_measured(calibration)}, {counted(calibration.pairs, 'pair')}, {day}); "
        f"smaller differences are not claimed{_doubt(calibration)}"
    )


def age(calibration: Calibration) -> str:
    """Return how long ago it was measured, in words."""
    days = int((time.time() - calibration.created) // 86400)
    return "today" if days < 1 else f"{days} day{'s' * (days > 1)} ago"


def floor_sentence(known: Sequence[Calibration], kind: str) -> str:
    """Return the floor of a kind, its age, and if it was measured for this kind."""
    chosen = choose(known, kind)
    if chosen is None:
        return (
            "Noise floor not known: calibrate, or noise of the machine may count as a difference."
        )
    whose = "" if chosen.kind == kind else f"; {kind} was never calibrated"
    return (
        f"Noise floor {margin_text(chosen.floor)}, calibrated {age(chosen)} with "
        f"{_measured(chosen)}{whose}; smaller differences are not claimed{_doubt(chosen)}."
    )


def _doubt(calibration: Calibration) -> str:
    """Return a clause that says if another process may have raised the floor, and what to do."""
    if not calibration.disturbed:
        return ""
    culprit = calibration.disturbed
    return f"; may be too large, because {culprit} meanwhile: calibrate again without them"


def _measured(calibration: Calibration) -> str:
    """Describe what was run and its precision, and say if the host is unknown."""
    precision = calibration.kind.partition(" in ")[2]
    unknown = "" if calibration.host else ", its host not recorded"
    return f"{calibration.measured_with}{f' in {precision}' if precision else ''}{unknown}"


def _software(catalogue: Catalogue) -> str:
    versions = catalogue.environment
    return ", ".join(
        f"{name} {versions[name]}" for name in ("driver", "torch") if versions.get(name)
    )


def _host(catalogue: Catalogue) -> str:
    """Return the properties of the host on which the scatter of steps depends."""
    facts = catalogue.environment
    cpu, cores, limit = (facts.get(n, "") for n in ("cpu", "cpu_cores", "gpu_power_limit_w"))
    parts = [
        cpu if cpu != catalogue.device_title else "",
        f"{cores} core{'s' * (cores != '1')}" if cores else "",
        f"GPU limited to {limit} W" if limit else "",
    ]
    return ", ".join(filter(None, parts))


def _load_all() -> dict[str, Calibration]:
    return state_files.read(path(), Calibration)[0]
