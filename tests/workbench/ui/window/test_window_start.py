"""Opening the window: fast, without torch, and with a sentence where it cannot be opened."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hang_limit import HANG_S
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QTabBar
from shown_window import opened

from workbench.ui.controllers.appearance import Appearance
from workbench.ui.process import platform_check
from workbench.ui.window import MainWindow

OPEN = """
import sys, time
sys.path.insert(0, sys.argv[2])
from reference_machine import slowness
before = slowness(time.process_time)
began, began_work = time.perf_counter(), time.process_time()
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from workbench.ui import app
application = QApplication(["workbench"])
window = app.build(application, app.parse(["--settings", sys.argv[1]]))
window.show()
window.grab()
shown = time.perf_counter() - began, time.process_time() - began_work
print("shown", *shown, max(before, slowness(time.process_time)))
heavy = [name for name in ("torch", "triton", "kernels", "models", "workbench.runner", "scipy")
         if name in sys.modules]
print("heavy", heavy)
if "plots" in sys.argv:
    window.live
    print("with_plots", [name for name in ("torch", "triton", "kernels") if name in sys.modules])
window.close()
"""


@pytest.fixture(scope="module")
def starts(tmp_path_factory, request) -> list[dict[str, str]]:
    """Return what several starts in turn printed; the first goes on to the live plots."""
    helpers = request.path.parents[1]
    return [
        open_window(tmp_path_factory.mktemp("start"), helpers, *more)
        for more in (["plots"], [], [])
    ]


def open_window(tmp_path, helpers, *more):
    environment = {
        **os.environ,
        "QT_QPA_PLATFORM": "offscreen",
        "XDG_STATE_HOME": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "",  # an installed program is compiled once
    }
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path / "s.ini"), str(helpers), *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_the_window_opens_without_torch(starts):
    for seen in starts:
        assert seen["heavy"] == "[]"
    assert starts[0]["with_plots"] == "[]"


def test_the_window_shows_within_a_second(starts, capsys):
    """The best of several starts counts, in seconds of the reference machine."""
    times_s = []
    for seen in starts:
        wall_s, processor_s, slow = map(float, seen["shown"].split())
        times_s.append(min(wall_s, processor_s) / slow)
        with capsys.disabled():
            print(
                f"\nwindow shown after {wall_s:.2f} s, {processor_s:.2f} s of processor; "
                f"the machine is {slow:.2f} times as slow as the reference"
            )
    assert min(times_s) < 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "there is no display"),
        ({"QT_QPA_PLATFORM": "xcb"}, "there is no display"),
        ({"DISPLAY": ":97", "QT_QPA_PLATFORM": "xcb"}, "DISPLAY=:97 does not answer"),
        ({"DISPLAY": "nonsense"}, "names no display"),
        ({"QT_QPA_PLATFORM": "kitchen"}, "QT_QPA_PLATFORM=kitchen is not a platform of Qt"),
    ],
)
def test_without_a_display_one_sentence_names_the_fix_and_the_exit_code_is_1(
    tmp_path, environment, expected
):
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from workbench.ui.app import run; sys.exit(run([]))"],
        env={**clean, **environment, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and expected in lines[0], done.stderr


def test_a_missing_library_is_named_with_the_package_that_has_it(monkeypatch):
    monkeypatch.setattr(platform_check, "PACKAGES", {"libno-such-thing.so.7": "libno-such-thing7"})
    sentence = platform_check.trouble({"QT_QPA_PLATFORM": "offscreen"})
    assert "libno-such-thing.so.7" in sentence
    assert "sudo apt install libno-such-thing7" in sentence


def test_a_platform_that_needs_no_display_is_no_trouble():
    assert platform_check.trouble({"QT_QPA_PLATFORM": "offscreen"}) == ""
    assert platform_check.trouble({"QT_QPA_PLATFORM": "minimal"}) == ""


@pytest.mark.parametrize("option", [[], ["--replay"]])
@pytest.mark.parametrize(
    ("name", "reason"), [("none.h5", "there is no such file"), (".", "is a folder")]
)
def test_a_missing_file_or_a_folder_is_a_mistake_of_exit_code_2(
    tmp_path, capsys, option, name, reason
):
    from workbench.ui.app import parse

    with pytest.raises(SystemExit) as raised:
        parse([*option, str(tmp_path / name)])
    assert raised.value.code == 2
    assert reason in capsys.readouterr().err


def bars_of(window) -> list[list[str]]:
    """The tabs of each bar of docks that is seen."""
    direct = Qt.FindChildOption.FindDirectChildrenOnly
    bars = window.dock_area.findChildren(QTabBar, options=direct)
    return [[bar.tabText(at) for at in range(bar.count())] for bar in bars if bar.isVisible()]


def test_every_dock_has_one_tab_in_a_fresh_a_reset_and_a_kept_layout(
    qapp, qtbot, window, settings, workspace
):
    def each_once(shown) -> bool:
        tabs = [tab for bar in bars_of(shown) for tab in bar]
        return len(tabs) == len(set(tabs)) == 13

    qtbot.waitUntil(lambda: each_once(window))
    window.reset_layout()
    window.resize(1500, 900)
    qtbot.wait(50)
    qtbot.waitUntil(lambda: each_once(window))
    settings.save_layout("docks", window.dock_area.save_layout())
    again = MainWindow(workspace, settings, Appearance(qapp, workspace.theme, settings))
    qtbot.addWidget(again)
    again.show()
    qtbot.wait(50)
    qtbot.waitUntil(lambda: each_once(again))


def test_a_window_that_is_gone_before_its_docks_are_laid_out_is_no_error(qapp, workspace, settings):
    with opened(qapp, workspace, settings):
        pass
    qapp.processEvents()  # pytest-qt fails the test for an exception in the event loop
