"""Banners above the docks: failures and offers that do not interrupt the user's work."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.numbers import counted
from sessions.plain_text import capitalized, clip
from workbench import protocol
from workbench.client.throttle import Throttle
from workbench.protocol import Failure
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.titles import Titles, offered
from workbench.ui.panels import _widgets
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.failures import FailureModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.theme import ThemeModel

SHOWN = 3  # older banners make room
DETAIL_LINES = 8
LONGEST_DETAIL = 20_000  # characters
PERIOD_MS = 1000  # between two reports of failures that come too fast


class Banner(QFrame):
    """Banner: a sentence, what to do, details on demand, and buttons."""

    dismissed = Signal()

    def __init__(
        self,
        theme: ThemeModel,
        tone: str,
        sentence: str,
        fix: str = "",
        detail: str = "",
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self.tone = tone
        self.setProperty("banner", True)
        self.setProperty("tone", tone)
        self._mark = _widgets.Mark()
        self.sentence = _widgets.WrappedText(capitalized(clip(sentence)))
        self.sentence.setTextFormat(Qt.TextFormat.PlainText)
        self.sentence.setObjectName("sentence")
        self._buttons = _widgets.tight(QHBoxLayout())
        self._close = QToolButton()
        self._close.setToolTip("Dismiss")
        self._close.setAccessibleName("Dismiss")
        self._close.clicked.connect(self.dismissed)
        head = _widgets.tight(QHBoxLayout())
        head.addWidget(self._mark)
        text = _widgets.tight(QVBoxLayout(), 2)
        text.addWidget(self.sentence)
        if fix:
            text.addWidget(_widgets.note(clip(fix)))
        head.addLayout(text, 1)
        head.addLayout(self._buttons)
        head.addWidget(self._close)
        layout = _widgets.tight(QVBoxLayout(self), 4)
        layout.setContentsMargins(12, 6, 6, 6)
        layout.addLayout(head)
        if detail:
            layout.addWidget(self._make_details(detail))
        theme.changed.connect(self._draw)
        self._draw()

    def add(self, text: str, act: Callable[[], None], *, closes: bool = True) -> QPushButton:
        """Add a button; a click also dismisses the banner if ``closes``."""
        button = _widgets.compact(text)
        button.clicked.connect(act)
        if closes:
            button.clicked.connect(self.dismissed)
        self._buttons.addWidget(button)
        return button

    def _make_details(self, detail: str) -> QWidget:
        box = QPlainTextEdit(clip(detail, LONGEST_DETAIL))
        box.setReadOnly(True)
        box.setFont(fonts.small(fonts.fixed()))
        lines = min(DETAIL_LINES, detail.count("\n") + 1)
        box.setFixedHeight(box.fontMetrics().lineSpacing() * lines + 16)
        box.hide()
        button = _widgets.compact("Details")
        button.setCheckable(True)
        button.toggled.connect(box.setVisible)
        self._buttons.addWidget(button)
        return box

    def _draw(self) -> None:
        theme = self._theme.current
        role = "accent" if self.tone == "info" else self.tone
        name = "info" if self.tone == "info" else "error"
        self._mark.show_icon(name, theme, role)
        self._close.setIcon(icon("close", theme, "muted"))


class FailurePanel(QWidget):
    """The stack of banners; every reported failure becomes one."""

    def __init__(
        self,
        run: RunModel,
        configuration: ConfigurationModel,
        failures: FailureModel,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._run, self._configuration, self._theme = run, configuration, theme
        self._banners: list[Banner] = []
        self._without_runner: list[Banner] = []  # banners that offer a new runner
        self._throttle = Throttle()
        self._waiting: Failure | None = None  # the newest that is not shown yet
        self._timer = QTimer(self, singleShot=True, interval=PERIOD_MS)
        self._timer.timeout.connect(self._show_waiting)
        self._column = _widgets.tight(QVBoxLayout(self), 4)
        failures.reported.connect(self.show_failure)
        run.stateChanged.connect(self._on_state_changed)

    @property
    def banners(self) -> list[Banner]:
        """The banners that are shown, the newest first."""
        return list(self._banners)

    def show_failure(self, failure: Failure) -> None:
        """Show a failure instead of an earlier failure with the same sentence.

        If failures arrive faster than they can be read, only the newest and their number are shown.
        """
        if not self._throttle.passes():
            self._waiting = failure
            if not self._timer.isActive():
                self._timer.start()
            return
        self._show_now(failure)

    def _show_waiting(self) -> None:
        count, failure = self._throttle.due(at_end=True), self._waiting
        if failure is not None and count:
            self._waiting = None
            self._show_now(failure)
            if count > 1:
                text = f"{counted(count - 1, 'more failure')} came within a second."
                self.show_banner("warning", text, "The panel Events lists all of them.")

    def _show_now(self, failure: Failure) -> None:
        sentence, fix = self._titled(failure.sentence), self._titled(failure.fix)
        for banner in self.banners:
            if banner.sentence.text() == clip(sentence):
                self.remove(banner)
        banner = self.show_banner("bad", sentence, fix, failure.detail)
        if failure.set and self._configuration.catalogue is not None:
            self._offer(banner, failure.set)
        if failure.clears:
            banner.add("Clear Triton's cache", self._clear_triton_cache).setToolTip(
                "Deletes Triton's compiled kernels from the disk. A run in progress ends."
            )
        if failure.fatal or failure.kind in ("hang", "died", "wire", "cuda"):
            banner.add("Start a new runner", self._run.start_runner)
            self._without_runner.append(banner)
        text = "\n".join(filter(None, (failure.sentence, failure.fix, failure.detail)))
        banner.add("Copy details", lambda: _copy(text), closes=False)

    def _titled(self, text: str) -> str:
        """Return a text of the runner with the titles that the toggles and the events have."""
        catalogue = self._configuration.catalogue
        return text if catalogue is None else Titles(offered(catalogue)).of(text)

    def _clear_triton_cache(self) -> None:
        self._run.send(protocol.ClearTritonCache())

    def _offer(self, banner: Banner, choices: dict[str, str]) -> None:
        """Add a button that makes the choices as a single step of undo."""
        catalogue = self._configuration.catalogue
        assert catalogue is not None
        text = config_edit.choice_text(catalogue, choices)
        banner.add(text, lambda: self._configuration.choose(choices, text)).setToolTip(
            "Choose this option; Undo reverts it"
        )

    def show_banner(self, tone: str, sentence: str, fix: str = "", detail: str = "") -> Banner:
        """Put a banner on top; ``tone`` is ``bad``, ``warning`` or ``info``."""
        banner = Banner(self._theme, tone, sentence, fix, detail)
        banner.dismissed.connect(lambda: self.remove(banner))
        self._banners.insert(0, banner)
        self._column.insertWidget(0, banner)
        self._column.setContentsMargins(8, 8, 8, 0)
        for old in self._banners[SHOWN:]:
            self.remove(old)
        return banner

    def remove(self, banner: Banner) -> None:
        """Remove a banner, unless it is gone already."""
        if banner not in self._banners:
            return
        banner.hide()
        banner.deleteLater()
        self._banners.remove(banner)
        if not self._banners:
            self._column.setContentsMargins(0, 0, 0, 0)

    def dismiss_failures(self) -> None:
        """Dismiss failures and warnings, because the session that they are about was left."""
        self._throttle, self._waiting = Throttle(), None
        for banner in self.banners:
            if banner.tone != "info":
                self.remove(banner)

    def _on_state_changed(self) -> None:
        """Dismiss banners that offer a new runner once it starts: a click would end its run."""
        if self._run.state == "starting":
            for banner in self._without_runner:
                self.remove(banner)
            self._without_runner.clear()


def _copy(text: str) -> None:
    QGuiApplication.clipboard().setText(text)
