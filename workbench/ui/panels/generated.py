"""The text that the model generates: the newest text of the first sequence, as it arrives."""

from __future__ import annotations

from PySide6.QtGui import QColor, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QStackedWidget, QTextEdit, QVBoxLayout, QWidget

from sessions.model import Segment
from sessions.numbers import counted
from workbench.ui.panels import _widgets
from workbench.ui.panels.empty import Empty
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

MARGIN = 10  # plus the frame's margin: aligned with the line above


class GeneratedPanel(QWidget):
    """The text of the selected segment, or of the newest that wrote one."""

    def __init__(
        self, session: SessionModel, theme: ThemeModel, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._session, self._theme = session, theme
        self._shown: tuple[str, str] = ("", "")  # prompt and text
        self.text = QTextEdit()
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self.text.document().setDocumentMargin(MARGIN)
        self.text.setReadOnly(True)
        self.text.setUndoRedoEnabled(False)
        self.text.setAcceptRichText(False)
        self.text.setAccessibleName("Generated text")
        self.note = _widgets.note()
        self.empty = Empty(
            theme,
            "log",
            "Nothing has been generated yet",
            "Run the workload Generate text: the text of the first sequence appears here.",
        )
        body = QWidget()
        body.setProperty("panel", True)
        column = _widgets.tight(QVBoxLayout(body), 0)
        head = _widgets.tight(QVBoxLayout())
        head.setContentsMargins(12, 6, 12, 6)
        head.addWidget(self.note)
        column.addLayout(head)
        column.addWidget(_widgets.rule())
        column.addWidget(self.text, 1)
        self._pages = QStackedWidget()
        self._pages.addWidget(self.empty)
        self._pages.addWidget(body)
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        for changed in (session.textChanged, session.selectionChanged, session.sessionChanged):
            changed.connect(self._show)
        theme.changed.connect(self._draw)
        self._show()

    def _segment(self) -> Segment | None:
        """Return the selected segment if it generated text, else the newest that did."""
        writing = [segment for segment in self._session.shown.segments if "text" in segment.ledger]
        selected = [segment for segment in writing if segment.index == self._session.selection]
        return next(iter(selected or writing[-1:]), None)

    def _show(self) -> None:
        segment = self._segment()
        self._pages.setCurrentIndex(0 if segment is None else 1)
        if segment is None:
            return
        self.note.setText(self._session.titled(_caption(segment)))
        shown = str(segment.ledger.get("prompt", "")), str(segment.ledger["text"])
        if shown == self._shown:
            return
        before, self._shown = self._shown, shown
        if before[0] == shown[0] and before[1] and shown[1].startswith(before[1]):
            self._add(shown[1][len(before[1]) :], self._theme.current.text)
        else:
            self._draw()

    def _draw(self) -> None:
        self.text.clear()
        prompt, text = self._shown
        self._add(prompt, self._theme.current.muted)
        self._add(text, self._theme.current.text)

    def _add(self, text: str, colour: str) -> None:
        """Append the text, and scroll to it unless the user has scrolled back."""
        scroll_bar = self.text.verticalScrollBar()
        at_end = scroll_bar.value() >= scroll_bar.maximum()
        form = QTextCharFormat()
        form.setForeground(QColor(colour))
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text, form)
        if at_end:
            scroll_bar.setValue(scroll_bar.maximum())


def _caption(segment: Segment) -> str:
    """Return the segment, its sampling, and how long its prompts took."""
    settings, ledger = segment.configuration.settings, segment.ledger
    parts = [f"Segment {segment.index}: {segment.label}"]
    parts += [
        f"{title} {settings[name]:g}"
        for name, title in (("temperature", "temperature"), ("top_p", "top-p"))
        if name in settings
    ]
    if "prefill_ms" in ledger and "sequence" in settings:
        parts.append(
            f"prompt of {counted(int(settings['sequence']), 'token')} processed in "
            f"{ledger['prefill_ms']:.3g} ms (median of {ledger['prefills']})"
        )
    return "; ".join(parts)
