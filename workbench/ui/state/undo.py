"""Undo and redo of toggles and presets: one entry per decision, however many toggles it changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtGui import QUndoCommand

Choices = dict[str, str]


class Change(QUndoCommand):
    """A change of some choices; ``apply`` makes those that it is given."""

    def __init__(self, text: str, before: Any, after: Any, apply: Callable[[Any], None]) -> None:
        super().__init__(text)
        self._before = before
        self._after = after
        self._apply = apply

    def undo(self) -> None:
        """Return to the choices of before."""
        self._apply(self._before)

    def redo(self) -> None:
        """Make the choices, the first time as well."""
        self._apply(self._after)
