"""Shared by the plots of a profile: the profile that is shown, units, colours of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtGui import QColor

from sessions.model import Study
from sessions.studies import breakdown
from sessions.studies.breakdown import KINDS
from workbench.charts.plot import Run
from workbench.charts.style import Style, shade
from workbench.charts.units import Unit
from workbench.theming.icons import mixed

MICROSECONDS = Unit("s", 1e-6)
_TINTS = (0.5, 0.3, 0.7)  # share of a class's colour in its cells; changes when colours repeat


def _has_kernels(_: Study) -> bool:
    return True


def choices(
    runs: Sequence[Run], can_draw: Callable[[Study], bool] = _has_kernels
) -> Mapping[str, tuple[str, ...]]:
    """Return the profiles of the first session that has any, by number, the newest first.

    ``can_draw``: return True for a profile that has what the plot draws.
    """
    numbered = enumerate(_of(runs), start=1)
    numbers = [str(number) for number, study in numbered if can_draw(study)]
    return {"profile": tuple(reversed(numbers))} if numbers else {}


def shown(
    runs: Sequence[Run], profile: str = "", can_draw: Callable[[Study], bool] = _has_kernels
) -> Study | None:
    """Return the profile of that number, or the newest that ``can_draw`` if it is empty."""
    studies = _of(runs)
    if profile:
        number = int(profile)
        return studies[number - 1] if 0 < number <= len(studies) else None
    return next(filter(can_draw, reversed(studies)), None)


def no_profile(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if there is a profile."""
    if _of(runs):
        return None
    if any(breakdown.stored(run.session) for run in runs):
        return "The profile of this session has impossible numbers."
    return "No steps of this session were profiled."


def class_color(kind: str, style: Style, *, strong: bool = False) -> QColor:
    """Return the colour of an operator class; ``strong``: of a dot rather than of an area."""
    number = KINDS.index(kind) if kind in KINDS else len(KINDS) - 1
    color = style.color(number % len(style.theme.series))
    if strong:
        return color
    tint = _TINTS[number // len(style.theme.series) % len(_TINTS)]
    return shade(mixed(color.name(), style.theme.surface, tint))


def key(runs: Sequence[Run]) -> object:
    """Return the number of profiles: another newest profile needs another drawing."""
    return len(_of(runs))


def _of(runs: Sequence[Run]) -> list[Study]:
    return next((profiles for run in runs if (profiles := breakdown.profiles(run.session))), [])
