"""Scripts in folders of their own, run by the real command with a real watcher."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sessions.model import Session
from sessions.storage import hdf5
from workbench.cli import main
from workbench.runner.script.reader import Reader
from workbench.scripts.launch import script_environment


@dataclass
class Result:
    """Exit code, output and file of a command."""

    code: int
    out: str
    err: str
    path: Path

    @property
    def session(self) -> Session:
        return hdf5.load(self.path)


@pytest.fixture
def write(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Write a script into the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def record(tmp_path) -> Callable[[Path], Reader]:
    """Run a script with the instrumentation alone; returns what reads its recording."""

    def record(script: Path) -> Reader:
        folder = tmp_path / "recording"
        folder.mkdir()
        environment = script_environment(folder, {}, "mark")
        command = [sys.executable, str(script)]
        result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True)
        assert result.returncode == 0, result.stderr.decode()
        return Reader(folder)

    return record


@pytest.fixture
def run(tmp_path, monkeypatch, capfd) -> Callable[..., Result]:
    """Run ``workbench WORDS -o FILE -- COMMAND``; the command is this Python with the script."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, script: tuple[object, ...], saved: bool = True) -> Result:
        path = tmp_path / "out.h5"
        output = ("-o", str(path)) if saved else ()
        code = main([*words, *output, "--", sys.executable, *map(str, script)])
        return Result(code, *capfd.readouterr(), path)

    return run
