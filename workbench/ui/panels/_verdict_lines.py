"""A verdict's evidence and numbers as marked lines: an icon, a word and a colour each."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtGui import QColor
from PySide6.QtWidgets import QTableWidgetItem

from sessions.model import PairedComparison, Segment
from sessions.plain_text import capitalized
from sessions.verdicts.arm_results import are_right, unchecked_arms, wrong_arms
from sessions.verdicts.verdict_words import memory_words, numerics_lines, verdict_word
from sessions.verdicts.work import DIFFERENT_MODELS, OTHER_WORK
from workbench.theming.icons import icon
from workbench.theming.theme import Theme
from workbench.titles import Titles
from workbench.ui.panels._evidence import mark_of

Line = tuple[str, str, str]  # text, icon, role of the colour

TONES = {"FASTER": "good", "SLOWER": "bad", "SAME": "accent"}
ICONS = {"FASTER": "effective", "SLOWER": "warning", "SAME": "info"}
ICONS |= dict.fromkeys((DIFFERENT_MODELS, OTHER_WORK), "info")


def tone(comparison: PairedComparison, verdict: str = "") -> str:
    """Return the colour of the verdict; wrong numbers are bad however fast.

    No verdict is good if the numbers were not checked.
    """
    if wrong_arms(comparison):
        return "bad"
    role = TONES.get(verdict or verdict_word(comparison), "")
    return "warning" if role == "good" and unchecked_arms(comparison) else role


def icon_of(comparison: PairedComparison, verdict: str = "") -> str:
    """Return the icon of the verdict."""
    verdict = verdict or verdict_word(comparison)
    return "error" if wrong_arms(comparison) else ICONS.get(verdict, "unknown")


def dress(item: QTableWidgetItem, icon_name: str, role: str, theme: Theme) -> None:
    """Give the cell of a verdict its icon and colour; ``role`` may be empty."""
    item.setIcon(icon(icon_name, theme, role or "muted"))
    if role:
        item.setForeground(QColor(getattr(theme, role)))


def of_arm(
    comparison: PairedComparison, side: str, segments: Sequence[Segment], titles: Titles
) -> list[Line]:
    """Return the lines about arm "A" or "B": its numbers, its memory, its evidence."""
    memory = memory_words(comparison, side, segments)
    lines = [(capitalized(memory), "info", "muted")] if memory else []
    return _numerics(comparison, side) + lines + _evidence(comparison, side, segments, titles)


def troubles(
    comparison: PairedComparison, segments: Sequence[Segment], titles: Titles
) -> list[Line]:
    """Return only failures and options without effect, briefly; once if both arms have them."""
    lines = [
        (f"{arm}: wrong numbers: {text}", "error", "bad") for arm, text in wrong_arms(comparison)
    ]
    lines += [
        (f"{arm}: numbers {text}", "unknown", "warning") for arm, text in unchecked_arms(comparison)
    ]
    sides: dict[Line, list[str]] = {}
    for side in "AB":
        for line in _evidence(comparison, side, segments, titles):
            if line[2] in ("bad", "warning"):
                sides.setdefault(line, []).append(side)
    for (text, mark, role), which in sides.items():
        lines.append((f"{' and '.join(which)}: {text}", mark, role))
    return lines


def _numerics(comparison: PairedComparison, side: str) -> list[Line]:
    result = comparison.facts.get("numerics", {}).get(str("AB".index(side)))
    if result is None:
        return []
    mark, role = {
        True: ("effective", "good"),
        False: ("error", "bad"),
        None: ("unknown", "warning"),
    }[are_right(result)]
    prefix = f"{side}: "
    (text,) = (
        line.removeprefix(prefix) for line in numerics_lines(comparison) if line.startswith(prefix)
    )
    return [(capitalized(text), mark, role)]


def _evidence(
    comparison: PairedComparison, side: str, segments: Sequence[Segment], titles: Titles
) -> list[Line]:
    indices = comparison.facts.get("segments", [])
    arm = "AB".index(side)
    if arm >= len(indices) or indices[arm] >= len(segments):
        return []
    return [
        (
            f"{titles.choice(item.toggle, item.requested)}, {item.status}: {item.text}",
            *mark_of(item.status),
        )
        for item in segments[indices[arm]].evidence
    ]
