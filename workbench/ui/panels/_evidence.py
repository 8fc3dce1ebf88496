"""How a panel marks whether an option took effect; the status itself is the word."""

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
    """Icon, and role of its colour."""
    return _MARKS.get(status, ("unknown", "muted"))


def evidence_of(segments: Sequence[Segment]) -> dict[str, Evidence]:
    """What is known of each toggle: of the last segment, and of the one that failed before it.

    An option that failed stays until the toggles become others than those gone back to.
    """
    if not segments:
        return {}
    last = segments[-1]
    found = {item.toggle: item for item in last.evidence}
    back = len(segments) - 1
    while back and segments[back].configuration.toggles == last.configuration.toggles:
        back -= 1
    tried, gone_back = segments[back], segments[back - 1] if back else last
    if tried is last or gone_back.configuration.toggles != last.configuration.toggles:
        return found
    return found | {item.toggle: item for item in tried.evidence if item.status == "failed"}
