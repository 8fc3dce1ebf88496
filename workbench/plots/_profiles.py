"""What the plots of a profile share: which one is shown, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sessions.model import Study
from sessions.studies import breakdown
from workbench.charts.plot import Run


def choices(runs: Sequence[Run]) -> Mapping[str, tuple[str, ...]]:
    """The profiles of the first session that has any, by number, the newest first."""
    count = len(_of(runs))
    return {"profile": tuple(str(number) for number in range(count, 0, -1))} if count else {}


def shown(runs: Sequence[Run], profile: str = "") -> Study | None:
    """The profile of that number, the newest where none is named."""
    studies = _of(runs)
    number = int(profile) if profile else len(studies)
    return studies[number - 1] if 0 < number <= len(studies) else None


def no_profile(runs: Sequence[Run]) -> str | None:
    """Why there is nothing to show."""
    return None if _of(runs) else "No steps of this session were profiled."


def key(runs: Sequence[Run]) -> object:
    """Changes when another profile is the newest."""
    return len(_of(runs))


def _of(runs: Sequence[Run]) -> list[Study]:
    return next((found for run in runs if (found := breakdown.profiles(run.session))), [])
