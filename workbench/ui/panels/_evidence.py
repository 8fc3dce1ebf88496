"""How a panel marks whether an option took effect; the status itself is the word."""

from __future__ import annotations

_MARKS = {
    "effective": ("effective", "good"),
    "no effect": ("warning", "warning"),
    "failed": ("error", "bad"),
    "as default": ("info", "muted"),
}


def mark_of(status: str) -> tuple[str, str]:
    """Icon, and role of its colour."""
    return _MARKS.get(status, ("unknown", "muted"))
