"""Timed kernels of the session: bundled kernels and the best public ones, and all kernels."""

from __future__ import annotations

from PySide6.QtWidgets import QStackedWidget, QTabWidget, QVBoxLayout, QWidget

from sessions.model import KERNELS
from sessions.studies.kernel_leaders import leaders_table
from sessions.studies.kernels import kernels_table
from workbench.ui.panels import _widgets
from workbench.ui.panels._table_view import TableView
from workbench.ui.panels._throttle import ThrottledCall
from workbench.ui.panels.empty import Empty
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel


class KernelsPanel(QWidget):
    """The tables of the kernels that were timed in the shown session."""

    def __init__(
        self, session: SessionModel, theme: ThemeModel, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._session = session
        self.leaders, self.everything = TableView(), TableView()
        self.leaders.setAccessibleName("Bundled kernels and the best public ones")
        self.everything.setAccessibleName("All timed kernels")
        self._pages, tabs = QStackedWidget(), QTabWidget()
        tabs.setDocumentMode(True)
        tabs.addTab(self.leaders, "Bundled and best public")
        tabs.addTab(self.everything, "All")
        self.empty = Empty(
            theme,
            "breakdown",
            "No kernels timed",
            "workbench bench --model-shapes -o FILE times the kernels at the shapes of public "
            "models, and those of PyTorch and installed libraries. Open its file here.",
        )
        self._pages.addWidget(self.empty)
        self._pages.addWidget(tabs)
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        throttled = ThrottledCall(self._show, self)
        session.segmentsChanged.connect(throttled.schedule)
        session.sessionChanged.connect(self._show)
        self._show()

    def _show(self) -> None:
        session = self._session.shown
        timed = any(segment.configuration.family == KERNELS for segment in session.segments)
        self._pages.setCurrentIndex(int(timed))
        if timed:
            self.leaders.show_table(leaders_table(session))
            self.everything.show_table(kernels_table(session))
