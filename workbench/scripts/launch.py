"""A training script as a separate process, with the terminal of its caller."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench import descendants
from workbench.instrument import settings
from workbench.instrument.recording import ENDED, FOLDER, STOPPED, now_ns

ON_PATH = Path(settings.__file__).parent / "on_path"
GRACE_S = 5.0  # from SIGTERM to SIGKILL
TAIL_BYTES = 4096  # bytes of a hidden script's last output


class ScriptProcess:
    """One process of the command ``argv``; raises ``OSError`` if it cannot be started.

    ``chosen``: the settings. ``hidden``: what it prints is kept in a file instead of the terminal.
    ``aside``: its standard output goes to standard error. ``was_ended``: ``end`` ended it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        chosen: Mapping[str, str],
        *,
        hidden: bool = False,
        aside: bool = False,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="workbench-script-"))
        self._mark = uuid.uuid4().hex
        self.was_ended = False
        self._output = self.folder / "output"
        streams: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            if hidden:
                output = stack.enter_context(self._output.open("wb"))
                streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            elif aside:
                streams = {"stdout": sys.stderr}
            try:
                self._process = subprocess.Popen(
                    list(argv),
                    env=script_environment(self.folder, chosen, self._mark),
                    **streams,
                )
            except BaseException:
                self.remove()
                raise
        self._waiter = threading.Thread(target=self._wait, name="script", daemon=True)
        self._waiter.start()

    @property
    def is_running(self) -> bool:
        """True until its exit code is known."""
        return self._waiter.is_alive()

    @property
    def exit_code(self) -> int:
        """Its exit code as a shell reports it; 0 if ``end`` ended it."""
        code = self._process.returncode
        if self.was_ended:
            return 0
        return 128 - code if code < 0 else code

    @property
    def tail(self) -> str:
        """The last lines that a hidden script printed."""
        with contextlib.suppress(OSError), self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()
        return ""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; return False on timeout."""
        self._waiter.join(timeout_s)
        return not self.is_running

    def forward(self, number: signal.Signals) -> None:
        """Send a signal to the script, unless its terminal sent it to both of us."""
        if number is signal.SIGINT and _has_terminal():
            return
        self.send(number)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the script's process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self) -> None:
        """End the script because enough was measured; it counts as done.

        A script that handles SIGTERM may make further steps, which are not recorded.
        """
        if self.is_running:
            self.was_ended = True
            self._write(STOPPED, now_ns())
            self.send(signal.SIGTERM)
            if not self.wait(GRACE_S):
                self.send(signal.SIGKILL)
                self.wait()
        if self.was_ended:
            descendants.kill_marked(self._mark)

    def remove(self) -> None:
        """Remove the folder of the recording."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        self._process.wait()
        self._write(ENDED, self.exit_code)

    def _write(self, name: str, number: int) -> None:
        """Write a file of the recording, which its reader finds complete or not at all."""
        partial = self.folder / f"{name}.partial"
        with contextlib.suppress(OSError):
            partial.write_text(str(number))
            partial.rename(self.folder / name)


def script_environment(folder: Path, chosen: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the environment of a script that records into ``folder``."""
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        **settings.variables(chosen, os.environ),
        FOLDER: str(folder),
        "PYTHONPATH": f"{ON_PATH}{os.pathsep}{path}" if path else str(ON_PATH),
        descendants.VARIABLE: mark,
    }


def _has_terminal() -> bool:
    """Return True if this process is in the foreground of a terminal, which signals its group."""
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(descriptor) == os.getpgrp():
                return True
    return False
