"""Undo and redo of toggles: one entry per decision, however many toggles it changed."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtGui import QUndoCommand

Choices = dict[str, str]


class ToggleCommand(QUndoCommand):
    """A change of some toggles; ``apply`` makes the choices it is given."""

    def __init__(
        self, text: str, before: Choices, after: Choices, apply: Callable[[Choices], None]
    ) -> None:
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
