"""Undo and redo of toggles and toggle sets: an entry per decision, for any number of toggles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtGui import QUndoCommand, QUndoStack

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


class Choice(Change):
    """Change of toggles, the workload or the batch of a configuration."""

    def drop_if_reverted(self, stack: QUndoStack, choices: Choices) -> bool:
        """Remove this, the last change, if ``choices`` are as before it; return True if so."""
        if any(choices.get(name) != value for name, value in self._before.items()):
            return False
        self._apply = lambda _: None  # nothing is left to undo
        self.setObsolete(True)
        stack.undo()  # removes an obsolete change
        return True
