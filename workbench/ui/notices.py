"""Notices of written files, of sessions left behind, and of long measurements that ended."""

from __future__ import annotations

import time
from pathlib import Path

from PySide6.QtCore import QObject, QUrl
from PySide6.QtGui import QDesktopServices, QIcon
from PySide6.QtWidgets import QApplication, QSystemTrayIcon, QWidget

from sessions.plain_text import one_line
from workbench.ui.panels.failure import Banner, FailurePanel
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel

LONG_S = 30.0  # a measurement that takes so long is worth a notification
_LONGEST_TITLE = 80  # characters


class Notices(QObject):
    """Banners for notices; each replaces the last banner of its kind."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        tasks: Tasks,
        panel: FailurePanel,
        window: QWidget,
        icon: QIcon,
    ) -> None:
        super().__init__(window)
        self._session, self._run, self._configuration = session, run, configuration
        self._panel, self._window, self._icon = panel, window, icon
        self._banners: dict[str, Banner] = {}
        self._began: float | None = None  # monotonic time at which the run in progress began
        self._measures = False
        self._tray: QSystemTrayIcon | None = None
        tasks.wrote.connect(self.show_written)
        session.begun.connect(lambda: self._dismiss("ended"))
        session.left.connect(self._show_left)
        session.openingLeft.connect(self._show_opening_left)
        run.stateChanged.connect(self._on_state_changed)

    def show_written(self, path: Path) -> None:
        """Say where a file was written."""
        banner = self._show("written", f"Written: {path}")
        banner.add("Open folder", lambda: _open(path.parent))

    def _show_left(self) -> None:
        if (left := self._session.previous) is None:
            return
        title = one_line(left.recorder.session.title, _LONGEST_TITLE)
        if left.saved and left.path is not None:
            text = f"New session. {title!r} is saved in {left.path}."
        elif left.journal is not None:
            text = f"New session. {title!r} is in its journal {left.journal.path}."
        else:
            text = f"New session. {title!r} was not saved."
        banner = self._show("left", text)
        banner.add("Undo", self._restore)

    def _show_opening_left(self, path: Path) -> None:
        text = f"The live session is shown. {path.name} was still being read."
        self._show("opening", text).add("Open it", lambda: self._session.open(path))

    def _restore(self) -> None:
        self._run.restore_session(self._configuration.catalogue)

    def _on_state_changed(self) -> None:
        run = self._run
        if run.active:
            self._began = self._began or time.monotonic()
            self._measures = self._measures or run.measures
            self._dismiss("left")  # the run belongs to the new session
            self._dismiss("ended")  # it was about another measurement
        elif self._began is not None and run.state in ("idle", "dead"):
            took_s, measured = time.monotonic() - self._began, self._measures
            self._began, self._measures = None, False
            if measured and took_s >= LONG_S and not run.cancelled:
                self.notify(f"The measurement ended after {_duration(took_s)}.")

    def notify(self, text: str) -> None:
        """Notify a user who is elsewhere: in the task bar, by the system, and in the window."""
        if self._window.isActiveWindow():
            return
        self._show("ended", text)
        QApplication.alert(self._window)
        if QSystemTrayIcon.isSystemTrayAvailable():
            if self._tray is None:
                self._tray = QSystemTrayIcon(self._icon, self)
            self._tray.show()
            self._tray.showMessage(self._window.windowTitle(), text)

    def _show(self, kind: str, text: str) -> Banner:
        self._dismiss(kind)
        banner = self._panel.show_banner("info", text)
        self._banners[kind] = banner
        return banner

    def _dismiss(self, kind: str) -> None:
        if (banner := self._banners.pop(kind, None)) is not None:
            self._panel.remove(banner)


def _open(folder: Path) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder)))


def _duration(seconds: float) -> str:
    minutes, remaining_s = divmod(round(seconds), 60)
    return f"{minutes} min {remaining_s} s" if minutes else f"{remaining_s} s"
