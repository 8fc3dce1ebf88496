"""Disks that are full, folders that nobody may write to, a user without a home: one sentence."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wire_samples
from hang_limit import HANG_S
from test_headless import choose, script

import kernels.core.tuned_files as tuned_files
from workbench import calibration, ceilings, protocol, state_files, state_folder
from workbench.client import journal
from workbench.client.headless import run
from workbench.client.journal import Journal

HERE = Path(__file__).parent
LEAST = 4096  # bytes that a file may have in a child


def limited(program: str, *arguments: object, **more) -> subprocess.CompletedProcess[str]:
    """Run a Python process in which no file may grow over ``LEAST`` bytes.

    It writes no bytecode (-B): Python would leave a cut file, which no process can load.
    """
    limit = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LEAST}, {LEAST}))\n"
        f"sys.path[:0] = [{str(HERE.parents[1])!r}, {str(HERE / 'samples')!r}]\n"
    )
    command = [sys.executable, "-B", "-c", limit + program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, **more)


def test_a_journal_on_a_full_disk_complains_once_and_takes_whatever_comes(tmp_path):
    path = tmp_path / "a.journal"
    path.symlink_to("/dev/full")
    written = Journal(path)
    assert written.complaint() is None
    written.append(b"{}")
    written.append(b"{}")
    complaint = written.complaint()
    assert complaint.kind == protocol.JOURNAL and not complaint.fatal
    assert f"{path} cannot be written (No space left on device)" in complaint.sentence
    assert written.complaint() is None
    written.close(keep=False)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_lines_in_parts_gets_them_whole(tmp_path):
    class Slow(io.FileIO):
        def write(self, content):
            return super().write(content[:7])

    written = Journal(tmp_path / "a.journal")
    written._file = Slow(tmp_path / "a.journal", "ab")
    lines = [protocol.encode(message) for message in wire_samples.stream()[:3]]
    for line in lines:
        written.append(line)
    written.close()
    assert (tmp_path / "a.journal").read_bytes() == b"".join(lines)


def test_a_run_whose_journal_cannot_be_made_gives_the_same_session(monkeypatch):
    script(monkeypatch, *wire_samples.stream())
    with_journal = run(choose)
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    watched: list[protocol.AnyMessage] = []
    outcome = run(choose, watch=watched.append)
    assert [failure.sentence for failure in outcome.failures] == ["It failed."]
    assert outcome.unjournaled.startswith("The journal /dev/null/workbench/")
    assert sum(getattr(item, "kind", "") == protocol.JOURNAL for item in watched) == 1
    warnings = [event for event in outcome.session.events if event.text == outcome.unjournaled]
    assert [event.kind for event in warnings] == ["warning"]
    outcome.session.events.remove(warnings[0])
    wire_samples.assert_same(outcome.session, with_journal.session)


FILLS = """
import json, os, sys, wire_samples
from workbench import protocol
from workbench.client import headless, journal
from workbench.client.runner_process import Runner
lines = b"".join(map(protocol.encode, wire_samples.stream()))
program = f"import os, sys\\nos.write(1, {lines!r})\\nsys.stdin.read()"
headless.Runner = lambda kept: Runner(kept, [sys.executable, "-S", "-c", program])
start = protocol.Start(configuration=wire_samples.configuration(), steps=5)
outcome = headless.run(lambda catalogue: start)
print(json.dumps([len(outcome.session.segments), outcome.unjournaled, str(outcome.journal),
                  outcome.journal.stat().st_size, len(journal.recover(outcome.journal).segments)]))
"""


def test_a_disk_that_fills_up_in_a_run_costs_the_journal_alone(tmp_path):
    done = limited(FILLS)
    assert done.returncode == 0, done.stderr
    segments, sentence, path, size, recovered = json.loads(done.stdout)
    assert segments == 3 and f"{path} cannot be written (File too large)" in sentence
    assert 0 < size <= LEAST and recovered <= 3, "what came before can be recovered"


WRITES = """
from pathlib import Path
from workbench import calibration, presets, state_files
from workbench.commands._command import Failed, write_text
for write in (
    lambda path: presets.write(path, {"mine": {f"toggle{n}": "on" for n in range(999)}}),
    lambda path: state_files.write(path, "new", ["x" * 9999], {}),
    lambda path: write_text(path, "x" * 9999),
):
    try: write(Path(sys.argv[1]))
    except (ValueError, OSError, Failed) as error: print(error)
"""


def test_what_does_not_fit_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "old.json"
    path.write_text("old")
    done = limited(WRITES, path)
    assert done.returncode == 0, done.stderr
    refused = done.stdout.splitlines()
    assert len(refused) == 3 and all("File too large" in line for line in refused)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_floor_and_ceilings_that_cannot_be_stored_say_where_and_what_to_do(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with pytest.raises(OSError, match="Not a directory") as caught:
        state_files.write(calibration.path(), "name", [1.0], {})
    for sentence in (calibration.unstored(caught.value), ceilings.unstored(caught.value)):
        assert (
            sentence.startswith("/dev/null/workbench/")
            and "cannot be written (Not a dir" in sentence
        )
        assert sentence.endswith(state_folder.ELSEWHERE)
    assert state_files.read(calibration.path(), list)[0] == {}


def test_tiles_that_cannot_be_stored_say_where_and_what_to_do(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    file = tuned_files.folder() / "gpu" / "kernel.json"
    sentence = tuned_files.add(file, "key", tuned_files.Timed((1,), 1.0, 2.0))
    assert sentence.startswith(
        "/dev/null/workbench/tiles/gpu cannot be written (Not a directory); set "
    )
    assert tuned_files.load(file) == {}


def test_a_user_without_a_home_can_run_and_save_and_is_told_of_the_journal(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert state_folder.path() == Path("/nonexistent/.local/state/workbench")
    assert tuned_files.folder() == Path("/nonexistent/.cache/workbench/tiles")
    assert journal.unfinished() == []
