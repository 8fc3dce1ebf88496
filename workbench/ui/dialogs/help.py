"""The window of help pages: their titles on the left, the page on the right."""

from __future__ import annotations

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QDialog, QHBoxLayout, QListWidget, QTextBrowser, QWidget

from workbench.theming import fonts
from workbench.ui.help_pages import FILES, PAGES
from workbench.ui.panels import _widgets

SIZE = (820, 600)
_TITLE_PX = 16  # beside a title: frame and margins


class HelpDialog(QDialog):
    """Dialog of the help pages; links between pages stay inside it."""

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Help")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.resize(*SIZE)
        self.titles = QListWidget()
        self.titles.setAccessibleName("Help pages")
        self.titles.addItems([page.title for page in PAGES])
        fonts.follow(self.titles, self._fit_titles)
        self.page = QTextBrowser()
        self.page.setAccessibleName("Help page")
        self.page.setOpenLinks(False)
        self.page.anchorClicked.connect(self._open_link)
        layout = _widgets.tight(QHBoxLayout(self), 8, 8)
        layout.addWidget(self.titles)
        layout.addWidget(self.page, 1)
        self.titles.currentRowChanged.connect(self._show_row)
        self.show_page(name)

    def show_page(self, name: str) -> None:
        """Show a page by its name."""
        self.titles.setCurrentRow([page.name for page in PAGES].index(name))

    def _fit_titles(self) -> None:
        """Leave the page all the width that the titles do not need."""
        self.titles.setFixedWidth(self.titles.sizeHintForColumn(0) + _TITLE_PX)

    def _show_row(self, row: int) -> None:
        self.page.setMarkdown(PAGES[row].markdown())

    def _open_link(self, url: QUrl) -> None:
        """Show the page of a link; other addresses open in the browser."""
        name = FILES.get(url.path().rpartition("/")[2])
        if name is not None:
            self.show_page(name)
        elif url.scheme() in ("http", "https"):
            QDesktopServices.openUrl(url)
