"""Exceptions that nobody expected: one sentence, a log entry, and a window that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import synthetic
from hang_limit import HANG_S
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QPushButton
from pytestqt.exceptions import capture_exceptions

from workbench import crash_log, plot_export
from workbench.charts import header
from workbench.plots import PLOTS, Run
from workbench.theming.theme import DARK
from workbench.ui.panels._chart import Chart
from workbench.ui.panels.broken import Cover
from workbench.ui.process.uncaught import UncaughtErrors

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys
from sessions.storage import hdf5
def load(path): raise ZeroDivisionError("as planted " * 99)
hdf5.load = load
from workbench.__main__ import main
main()
"""


@pytest.fixture
def errors(window):
    """The window's last line of defence, in place of the tests' own."""
    made = UncaughtErrors(window.workspace.failures, window.dock_area.panels)
    yield made
    made.end()


def raises(*_: object) -> None:
    raise ZeroDivisionError("as planted")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_error_inside_a_command_is_1_with_a_sentence_and_a_log_entry(more, tmp_path):
    (tmp_path / "a.h5").write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "info", "a.h5", *more],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("workbench info: an error inside the program ended it (ZeroDivisionErr")
    assert line.endswith(f"{crash_log.path()} has its traceback.") and len(line) < 500
    assert "in load" in crash_log.path().read_text()
    assert crash_log.path().stat().st_mode & 0o077 == 0
    if more:
        assert json.loads(done.stdout)["failures"][0]["sentence"] in line


def test_a_log_that_cannot_be_written_is_told(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert crash_log.write(ZeroDivisionError()) is None
    assert "could not be logged" in crash_log.where(None)


def test_the_log_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(crash_log, "LONGEST_BYTES", 2000)
    for _ in range(50):
        crash_log.write(ZeroDivisionError("x" * 100))
    sizes = {file.name: file.stat().st_size for file in crash_log.path().parent.iterdir()}
    assert sizes.keys() == {"errors.log", "errors.log.1"} and max(sizes.values()) < 3000


class Dying:
    def __del__(self) -> None:
        raise ZeroDivisionError("as planted")


def test_errors_in_slots_threads_and_destructors_are_reported_and_the_window_goes_on(
    window, errors, qtbot
):
    workspace = window.workspace
    QTimer.singleShot(0, raises)
    qtbot.waitUntil(lambda: len(workspace.failures.recent) == 1)
    thread = threading.Thread(target=raises, name="worker")
    thread.start()
    thread.join()
    qtbot.waitUntil(lambda: len(workspace.failures.recent) == 2)
    Dying()
    qtbot.waitUntil(lambda: len(workspace.failures.recent) == 3)
    for failure, where in zip(
        workspace.failures.recent, ("window", "worker", "finalizer"), strict=True
    ):
        assert where in failure.sentence and "ZeroDivisionError: as planted" in failure.sentence
        assert failure.kind == "defect" and str(crash_log.path()) in failure.fix
    assert crash_log.path().read_text().count("as planted\n") == 3


def test_a_flood_of_errors_is_counted_and_reported_once_a_second(window, errors, qtbot):
    began = time.monotonic()
    for _ in range(500):
        QTimer.singleShot(0, raises)
    workspace = window.workspace
    qtbot.waitUntil(
        lambda: any("more followed" in failure.sentence for failure in workspace.failures.recent)
    )
    most = 3 + int(time.monotonic() - began)
    assert len(workspace.failures.recent) <= most and len(window.failures.banners) <= 3
    assert crash_log.path().read_text().count("as planted\n") <= most


def test_a_panel_that_cannot_draw_says_so_in_its_own_area(window, errors, qtbot, monkeypatch):
    panel = window.dock_area.docks["events"].widget()
    monkeypatch.setattr(panel, "_keep_place", raises)
    window.workspace.session.add_note("a note")
    qtbot.waitUntil(lambda: bool(panel.findChildren(Cover)))
    (cover,) = panel.findChildren(Cover)
    assert "This panel could not be drawn." in cover.sentence.text()
    assert [widget for widget in window.dock_area.panels if widget.findChildren(Cover)] == [panel]
    cover.findChild(QPushButton).click()
    assert cover.isHidden()


@pytest.fixture
def charts(window, qtbot):
    """Two plots of one session."""
    runs = [Run(synthetic.gpu_session(2, 300, 0))]
    made = [Chart(PLOTS[name], DARK, window.workspace.tasks) for name in ("step_time", "memory")]
    for chart in made:
        qtbot.addWidget(chart)
        chart.show_runs(runs)
        chart.show()
        chart.grab()
        assert chart.reason is None
    return made


def test_a_plot_that_cannot_be_drawn_says_so_and_the_plot_beside_it_goes_on(charts, monkeypatch):
    broken, other = charts
    monkeypatch.setattr(broken.canvas, "refresh", raises)
    with capture_exceptions() as caught:
        broken.refresh()
        broken.refresh()
        other.refresh()
    assert len(caught) == 1, "which fails every other test"
    assert "could not be drawn: ZeroDivisionError: as planted" in broken.reason
    assert other.reason is None
    monkeypatch.undo()
    broken.show_runs(broken.runs)
    assert broken.reason is None


def test_a_plot_that_cannot_be_painted_says_so_on_screen_and_is_not_exported_half(
    charts, qtbot, monkeypatch, tmp_path
):
    broken, other = charts
    other.hide()
    monkeypatch.setattr(header, "shade", raises)
    with capture_exceptions() as caught:
        broken.canvas.header.update()
        broken.grab()
        qtbot.waitUntil(lambda: broken.reason is not None)
    assert len(caught) == 1 and "as planted" in broken.reason
    with pytest.raises(ZeroDivisionError, match="as planted"):
        plot_export.export_plot("step_time", broken.runs, tmp_path / "a.png")
    broken.hide()
    assert not list(tmp_path.glob("*.png"))
