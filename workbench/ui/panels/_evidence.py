"""Icons and colours that mark in panels whether an option took effect."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model import Configuration, Evidence, Segment
from workbench.ui.state import config_edit

_MARKS = {
    "effective": ("effective", "good"),
    "no effect": ("warning", "warning"),
    "failed": ("error", "bad"),
    "as default": ("info", "muted"),
}


def mark_of(status: str) -> tuple[str, str]:
    """Return the icon of a status, and the role of its colour."""
    return _MARKS.get(status, ("unknown", "muted"))


def through_newest(segments: Sequence[Segment], configuration: Configuration) -> Sequence[Segment]:
    """Return the segments up to the newest with these toggles and evidence; all if none has both.

    The last segments of a study have other toggles.
    """
    for end in range(len(segments), 0, -1):
        segment = segments[end - 1]
        if (
            segment.evidence
            and segment.configuration.toggles == configuration.toggles
            and config_edit.of_one_run(segment.configuration, configuration)
        ):
            return segments[:end]
    return segments


def evidence_of(segments: Sequence[Segment]) -> dict[str, Evidence]:
    """Return the newest evidence of each toggle, with a failure just before the last segment.

    The evidence of an option that failed is returned as long as the toggles that replaced it run.
    """
    if not segments:
        return {}
    last = segments[-1]
    evidence = {item.toggle: item for item in last.evidence}
    back = len(segments) - 1
    while back and segments[back].configuration.toggles == last.configuration.toggles:
        back -= 1
    tried, gone_back = segments[back], segments[back - 1] if back else last
    if tried is last or gone_back.configuration.toggles != last.configuration.toggles:
        return evidence
    return evidence | {item.toggle: item for item in tried.evidence if item.status == "failed"}
