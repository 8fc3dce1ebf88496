"""The report builder: what it offers, in which order, and the file that comes of it."""

from __future__ import annotations

import pytest
from fake_session import session
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QMessageBox, QPushButton

from workbench.report import SECTIONS
from workbench.ui.dialogs.report_dialog import ReportDialog
from workbench.ui.menus.palette_entries import list_entries


@pytest.fixture
def dialog(qtbot, window):
    window.workspace.session.show(session("shown"))
    window.actions_["report"].trigger()
    (dialog,) = window.findChildren(ReportDialog)
    return dialog


def press(dialog, text: str) -> None:
    next(button for button in dialog.findChildren(QPushButton) if button.text() == text).click()


def test_nothing_measured_is_nothing_to_report(window):
    entry = next(
        entry for entry in list_entries(window, window.actions_) if entry.text.startswith("Report")
    )
    assert entry.why_not == "Nothing has been measured yet."


def test_what_the_session_has_is_ticked_and_what_it_lacks_says_so(dialog):
    assert dialog.chosen() == ["overview", "segments", "evidence", "machine", "again"]
    texts = [dialog.sections.item(row).text() for row in range(dialog.sections.count())]
    assert len(texts) == len(SECTIONS)
    assert "Sweeps (No sweep was measured.)" in texts
    assert not dialog.sections.item(texts.index("Sweeps (No sweep was measured.)")).flags()


def test_sections_are_left_out_and_put_in_another_order(dialog):
    dialog.sections.setCurrentRow(1)
    press(dialog, "Down")
    press(dialog, "Down")
    dialog.sections.item(0).setCheckState(Qt.CheckState.Unchecked)
    assert dialog.chosen() == ["evidence", "machine", "segments", "again"]
    press(dialog, "Up")
    assert dialog.chosen() == ["evidence", "segments", "machine", "again"]


def test_without_a_section_there_is_nothing_to_write(dialog):
    assert dialog.write.isEnabled()
    for row in range(5):
        dialog.sections.item(row).setCheckState(Qt.CheckState.Unchecked)
    assert not dialog.write.isEnabled()


def test_the_page_has_title_notes_sections_and_colours_that_were_chosen(
    dialog, tmp_path, monkeypatch
):
    opened = []
    monkeypatch.setattr(
        "workbench.ui.dialogs.report_dialog.QDesktopServices.openUrl",
        lambda url: opened.append(url),
    )
    target = tmp_path / "page"
    suggestions = []

    def ask(parent, title, suggestion, kinds):
        suggestions.append(suggestion)
        return str(target), kinds

    monkeypatch.setattr(QFileDialog, "getSaveFileName", ask)
    dialog.title.setText("Is BF16 worth it?")
    dialog.notes.setPlainText("for the review")
    dialog.theme.setCurrentText("Dark")
    dialog.write.click()
    content = target.with_suffix(".html").read_text()
    assert suggestions[0].endswith("is-bf16-worth-it.html")
    assert [url.toLocalFile() for url in opened] == [str(target.with_suffix(".html"))]
    for part in ("<h1>Is BF16 worth it?</h1>", "for the review", 'id="machine"', "--text: #e4e7eb"):
        assert part in content


def test_a_place_that_cannot_be_written_is_a_sentence_and_the_dialog_stays(
    dialog, tmp_path, monkeypatch
):
    target = tmp_path / "no" / "page.html"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(target), ""))
    warnings = []
    monkeypatch.setattr(QMessageBox, "warning", lambda *arguments: warnings.append(arguments[-1]))
    dialog.write.click()
    assert warnings and "choose another place" in warnings[0] and dialog.isVisible()


def test_compared_sessions_are_in_it(qtbot, window):
    window.workspace.session.show(session("shown"))
    window.workspace.compared.add(session("another"))
    window.actions_["report"].trigger()
    (dialog,) = window.findChildren(ReportDialog)
    assert [run.title for run in dialog.runs] == ["shown", "another"]
    assert "comparison" in dialog.chosen()
