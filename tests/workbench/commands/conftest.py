"""One real run for all tests of the commands, and runners that only say what a test tells them."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import synthetic

from sessions.storage import hdf5
from workbench import protocol
from workbench.cli import main
from workbench.client import headless
from workbench.client.runner_process import Runner

RUN = (
    *("run", "hydra", "--preset", "tiny", "--workload", "train", "--toggle", "adamw=fused"),
    *("--set", "dim=32", "--set", "n_layers=2", "--set", "n_heads=2", "--set", "n_kv_heads=1"),
    *("--set", "batch=1", "--set", "sequence=16", "--seed", "7", "--json"),
)


@dataclass
class Ran:
    """The files and output of one ``workbench run``, and its runner's messages."""

    path: Path
    state: Path  # where journals go
    steps: int = 120
    code: int = -1
    out: str = ""
    err: str = ""
    messages: list[protocol.AnyMessage] = field(default_factory=list)

    @property
    def catalogue(self) -> protocol.Catalogue:
        first = self.messages[0]
        assert isinstance(first, protocol.Catalogue)
        return first


@pytest.fixture(scope="session")
def ran(tmp_path_factory) -> Ran:
    """Return a few training steps of a tiny HYDRA in a real runner, saved."""
    folder = tmp_path_factory.mktemp("ran")
    made = Ran(folder / "tiny.h5", folder / "state")

    class Heard(Runner):
        def messages(self) -> Iterator[protocol.AnyMessage]:
            for message in super().messages():
                made.messages.append(message)
                yield message

    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setenv("XDG_STATE_HOME", str(made.state))
        patch.setattr(headless, "Runner", Heard)
        made.code = main([*RUN, "--steps", str(made.steps), "-o", str(made.path)])
    made.out, made.err = out.getvalue(), err.getvalue()
    return made


@pytest.fixture
def sent(monkeypatch, tmp_path_factory) -> Callable[..., list[protocol.Command]]:
    """Let ``run`` meet a runner that says these messages; gives what that runner is told.

    Its program is a file: Linux takes no argument above 128 KiB, which a catalogue may have.
    """
    programs = tmp_path_factory.mktemp("runners")

    def script(*messages: protocol.AnyMessage, then: str = "sys.stdin.read()"):
        commands: list[protocol.Command] = []

        class Scripted(Runner):
            def send(self, command: protocol.Command) -> bool:
                commands.append(command)
                return super().send(command)

        lines = b"".join(map(protocol.encode, messages))
        program = f"import os, sys\nos.write(1, {lines!r})\n{then}"
        path = programs / f"runner_{len(list(programs.iterdir()))}.py"
        path.write_text(program)
        runner = functools.partial(Scripted, command=(sys.executable, "-S", str(path)))
        monkeypatch.setattr(headless, "Runner", runner)
        monkeypatch.setattr("workbench.commands._headless.Runner", runner)
        return commands

    return script


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    """Two sessions, the second three tenths faster."""
    paths = (tmp_path / "base.h5", tmp_path / "fast.h5")
    for seed, (path, typical_ms) in enumerate(zip(paths, (20.0, 14.0), strict=True)):
        hdf5.save(synthetic.gpu_session(1, 300, seed, "the same title", typical_ms), path)
    return paths


@pytest.fixture
def damaged(tmp_path, pair) -> Path:
    """Return a session file of which the second half is missing."""
    content = pair[0].read_bytes()
    path = tmp_path / "damaged.h5"
    path.write_bytes(content[: len(content) // 2])
    return path
