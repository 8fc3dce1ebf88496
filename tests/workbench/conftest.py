"""Places of their own for what the workbench writes, and garbage that goes between the tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import process_forks
import pytest
from hang_limit import HANG_S

from sessions.storage import account_key

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
# A step may wait for a core for longer than the time after which a runner reports a hang.
os.environ.setdefault("WORKBENCH_HANG_S", str(HANG_S))

WINDOWS = ("charts", "plots", "report", "ui")  # the folders whose tests paint
HANG_MS = round(1e3 * HANG_S / 2)  # waits in a window are for less than whole processes


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    """Fork processes that would load torch for seconds."""
    with process_forks.forks():
        yield


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    """No test writes to the user's journals or settings.

    Files that a fixture saves for several tests have the seal of their common account key. If each
    test had its own key, it would check them in a process of its own.
    """
    state, key, read = str(tmp_path / "state"), account_key.read_or_make(), account_key.read
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setattr(
        account_key, "read", lambda: key if os.environ.get("XDG_STATE_HOME") == state else read()
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def qtbot(qtbot, monkeypatch):
    """Return the plugin's qtbot, whose waits fail only if nothing comes of them."""
    for name in ("waitUntil", "waitSignal", "waitSignals"):
        wait = getattr(qtbot, name)

        def patient(*args, timeout: int = HANG_MS, wait=wait, **options):
            return wait(*args, timeout=max(timeout, HANG_MS), **options)

        monkeypatch.setattr(qtbot, name, patient)
    return qtbot


@pytest.fixture(scope="module", autouse=True)
def garbage_of_the_module(request):
    """Old charts go when nothing is painted, as the window sees to by itself."""
    yield
    if not {*Path(request.path).parts}.isdisjoint(WINDOWS):
        gc.collect()
        gc.enable()


@pytest.fixture(autouse=True)
def no_garbage_goes_while_painting(request, garbage_of_the_module):
    """Collect no garbage while a chart is painted: items that are being painted would end."""
    if not {*Path(request.path).parts}.isdisjoint(WINDOWS):
        gc.disable()
