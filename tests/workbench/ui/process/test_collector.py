"""Cyclic garbage is collected by the window's thread and by no other."""

import gc
import threading

from PySide6.QtCore import QObject

from workbench.ui.process.gc_timer import GcTimer


class Cycle:
    def __init__(self, ends):
        self.me = self
        self.ends = ends

    def __del__(self):
        self.ends.append(threading.current_thread())


def test_cycles_made_by_another_thread_end_in_the_windows(qtbot):
    ends = []
    owner = QObject()
    timer = GcTimer(owner)
    try:
        maker = threading.Thread(target=lambda: [Cycle(ends) for _ in range(5000)])
        maker.start()
        maker.join()
        assert not ends
        qtbot.waitUntil(lambda: len(ends) == 5000)  # old garbage goes with it
        assert set(ends) == {threading.main_thread()}
    finally:
        timer.stop()


def test_python_collects_by_itself_again_after_the_window_is_closed(qtbot):
    owner = QObject()
    timer = GcTimer(owner)
    assert not gc.isenabled()
    timer.stop()
    assert gc.isenabled()


def test_no_thread_of_the_window_is_left_that_could_collect_when_python_does_again(
    complete_window, ready, monkeypatch
):
    collecting = []
    close = ready.workspace.close

    def closed():
        close()
        collecting.append(gc.isenabled())

    monkeypatch.setattr(ready.workspace, "close", closed)
    ready.close()
    assert collecting == [False] and gc.isenabled()
