"""Warnings about plug-ins that the window skipped, in the log of the live session."""

from __future__ import annotations

from PySide6.QtCore import QObject

from workbench import plugins, protocol
from workbench.ui.state import AppState


class PluginNotes(QObject):
    """Writes one warning for each plug-in that could not be used in the window's process.

    The runner reports its own. Plots and sections are loaded late, so this looks again whenever a
    segment begins.
    """

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._state = state
        self._written: set[plugins.Plugin] = set()
        if not state.replaying:
            state.catalogueChanged.connect(self._write)
            state.segmentsChanged.connect(self._write)

    def _write(self) -> None:
        for plugin in plugins.skipped():
            if plugin not in self._written:
                self._written.add(plugin)
                self._state.write(protocol.Note(kind="warning", text=plugin.sentence))
