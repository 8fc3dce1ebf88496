"""Warnings about plug-ins that the window skipped, in the log of the live session."""

from __future__ import annotations

from PySide6.QtCore import QObject

from workbench import plugins, protocol
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel


class PluginNotes(QObject):
    """Warnings about plug-ins that could not be used in the window's process.

    The runner reports its own. Plots and sections are loaded late, so this looks again whenever a
    segment begins.
    """

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._written: set[plugins.Plugin] = set()
        if not run.replaying:
            configuration.catalogueChanged.connect(self._write)
            session.segmentsChanged.connect(self._write)

    def _write(self) -> None:
        for plugin in plugins.skipped():
            if plugin not in self._written:
                self._written.add(plugin)
                self._session.write(protocol.Note(kind="warning", text=plugin.sentence))
