"""Commands and the window, ended by a signal at any moment, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import process_forks
import psutil
import synthetic
import wire_samples
from hang_limit import HANG_S

from sessions.storage import hdf5
from workbench import protocol
from workbench.client import journal

ROOT = Path(__file__).parents[3]
LIGHT = f"{sys.executable} {wire_samples.__file__} 0.02"  # a runner that streams until its end
LONGEST_S = 6.0  # of a command that does not end by itself
INTERRUPTED = 130
ENDINGS = {  # the last bytes of a file that was written to its end
    ".svg": b"</svg>", ".pdf": b"%%EOF", ".html": b"</html>", ".png": b"IEND\xaeB`\x82",
}  # fmt: skip
STUDY = ("--runner", LIGHT)
COMMANDS: dict[str, tuple[str, ...]] = {
    "info": ("info", "a.h5"),
    "info --command": ("info", "a.h5", "--command"),
    "compare": ("compare", "a.h5", "b.h5", "-o", "out.md"),
    "export svg": ("export", "a.h5", "b.h5", "--plot", "ecdf", "-o", "out.svg"),
    "export pdf": ("export", "a.h5", "--plot", "step_time", "-o", "out.pdf"),
    "export png": ("export", "a.h5", "--plot", "step_time", "-o", "out.png"),
    "export table": ("export", "a.h5", "--table", "segments", "-o", "out.csv"),
    "report": ("report", "a.h5", "b.h5", "-o", "out.html"),
    "recover": ("recover", "left.journal", "-o", "out.h5"),
    "doctor": ("doctor", *STUDY),
    "run": ("run", "hydra", "-o", "out.h5", *STUDY),
    "ab": ("ab", "hydra", "--b", "triton=on", "-o", "out.h5", *STUDY),
    "sweep": ("sweep", "hydra", "--over", "settings.batch=1,2", "-o", "out.h5", *STUDY),
    "validate": ("validate", "hydra", "-o", "out.h5", *STUDY),
    "onnx": ("onnx", "hydra", "-o", "out.onnx"),
    "window": ("a.h5", "b.h5", "--settings", "window.ini", *STUDY),
}


def is_reported(number: signal.Signals, ended: Ended) -> bool:
    """Return True if the exit code is that of a command which the signal ended.

    Before the first line of our code a signal ends Python itself: SIGINT with 1 where Python
    imports what runs a module.
    """
    expected = {-number} if number is signal.SIGKILL else {-number, INTERRUPTED}
    if number is signal.SIGINT and _in_python_itself(ended.errors):
        expected.add(1)
    return ended.code in expected


def _in_python_itself(errors: str) -> bool:
    """Return True if SIGINT came before Python ran a line of our code."""
    return errors.rstrip().endswith("KeyboardInterrupt") and f'File "{ROOT}' not in errors


def prepare(folder: Path) -> None:
    """Make the files that the commands read."""
    for seed, name in enumerate(("a.h5", "b.h5")):
        hdf5.save(synthetic.gpu_session(2, 3000, seed), folder / name)
    lines = map(protocol.encode, wire_samples.stream())
    (folder / "left.journal").write_bytes(b"".join(lines))


@dataclass
class Ended:
    """A command that ended: its exit code, output, and what is wrong with what it left."""

    code: int
    had_ended: bool  # before the signal
    errors: str
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0  # from the signal to the end


def run(
    arguments: tuple[str, ...], folder: Path, after_s: float, number: signal.Signals | None
) -> Ended:
    """Run a command in ``folder``, send it the signal after so many seconds, and look around."""
    state = folder / "state"
    for leftover in folder.glob(".*.part*"):  # of a kill before
        leftover.unlink()
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(state),
        "QT_QPA_PLATFORM": "offscreen",
        "PYTHONPATH": str(ROOT),
        **dict([process_forks.EXEC]),  # a signal may come while it loads its libraries
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stderr is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    had_ended = process.poll() is not None
    started: list[psutil.Process] = []
    if not had_ended and number is not None:
        with contextlib.suppress(psutil.Error):
            started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)  # nothing is sent if it has ended meanwhile
        had_ended = process.returncode is not None
    began = time.monotonic()
    try:
        _, errors = process.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
        return Ended(process.returncode, had_ended, errors.decode(), ["did not end"])
    if number is signal.SIGKILL and process.returncode >= 0:  # just before the signal
        had_ended = True
    ended = Ended(process.returncode, had_ended, errors.decode(errors="replace"))
    ended.seconds = time.monotonic() - began
    _, alive = psutil.wait_procs(started, timeout=HANG_S)
    ended.faults += [f"left the process {child.pid}" for child in alive]
    is_ours = not _in_python_itself(ended.errors)
    if "Traceback" in ended.errors and is_ours and number is not signal.SIGKILL:
        ended.faults.append("printed a traceback")
    if number is signal.SIGINT:
        ended.faults += [f"left {path.name}" for path in folder.glob(".*.part*")]
    ended.faults += _faults_of_files(folder, state)
    return ended


def _faults_of_files(folder: Path, state: Path) -> list[str]:
    faults = []
    for path in folder.glob("out.*"):
        if path.suffix == ".h5":
            hdf5.load(path)
        elif not path.read_bytes().rstrip().endswith(ENDINGS.get(path.suffix, b"")):
            faults.append(f"{path.name} is cut short")
        path.unlink()
    for path in state.glob("workbench/*"):
        if path.stat().st_mode & 0o077:
            faults.append(f"others can read {path.name}")
        if path.suffix == ".journal":
            if path.stat().st_size:
                journal.recover(path)
            path.unlink()
        elif path.name == "errors.log":
            faults.append(f"logged {path.read_text()}")
            path.unlink()
    return faults
