"""Undo and redo of toggles and toggle sets: an entry per decision, for any number of toggles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtGui import QUndoCommand

Choices = dict[str, str]


class Change(QUndoCommand):
    """Change of choices; ``apply`` is called with the choices to make."""

    def __init__(self, text: str, before: Any, after: Any, apply: Callable[[Any], None]) -> None:
        super().__init__(text)
        self._before = before
        self._after = after
        self._apply = apply

    def undo(self) -> None:
        """Apply the earlier choices."""
        self._apply(self._before)

    def redo(self) -> None:
        """Apply the later choices; Qt also calls this when the change is pushed."""
        self._apply(self._after)
