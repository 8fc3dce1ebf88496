"""Icons and colours that mark in panels whether an option took effect."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model import Evidence, Segment

_MARKS = {
    "effective": ("effective", "good"),
    "no effect": ("warning", "warning"),
    "failed": ("error", "bad"),
    "as default": ("info", "muted"),
}


def mark_of(status: str) -> tuple[str, str]:
    """Return the icon of a status, and the role of its colour."""
    return _MARKS.get(status, ("unknown", "muted"))


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
