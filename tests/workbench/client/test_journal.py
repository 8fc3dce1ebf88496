"""The journal is the session: replayed it is the live one, cut anywhere it is all up to there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import wire_samples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessions.model import Session
from workbench import protocol, state_folder
from workbench.client import journal, throttle
from workbench.client.journal import Journal, recover, replay, unfinished
from workbench.client.recorder import Recorder

MESSAGES = wire_samples.stream(segments=2, batches=2)
LINES = [protocol.encode(message) for message in MESSAGES]
WHOLE = b"".join(LINES)


def live(messages) -> Session:
    recorder = Recorder()
    for message in messages:
        recorder.record(message)
    return recorder.session


def write(path, *content: bytes):
    path.write_bytes(b"".join(content))
    return path


def test_replaying_a_journal_gives_the_live_session(tmp_path):
    path = tmp_path / "a.journal"
    written = Journal(path)
    recorder = Recorder()
    runners = [MESSAGES, wire_samples.stream(seed=3, created=1.7e9 + 60)]
    for message in [message for messages in runners for message in messages]:
        written.append(protocol.encode(message))
        recorder.record(message)
    note = protocol.Note(t_s=70.0, kind="note", text="by the person")
    written.write(note)
    recorder.record(note)
    described = protocol.Described(title="Mine", notes="Two runners.")
    written.write(described)
    recorder.record(described)
    written.close()
    recovered = recover(path)
    wire_samples.assert_same(recovered, recorder.session)
    assert recovered.title == "Mine"


@settings(max_examples=150, deadline=None)
@given(cut=st.integers(1, len(WHOLE)))
@example(cut=len(LINES[0]) - 1)  # all but the newline
@example(cut=len(WHOLE))
def test_a_journal_cut_at_any_byte_gives_everything_up_to_the_cut(tmp_path_factory, cut):
    path = write(tmp_path_factory.getbasetemp() / "cut.journal", WHOLE[:cut])
    complete = WHOLE[:cut].count(b"\n")
    if WHOLE[cut : cut + 1] == b"\n":
        complete += 1  # only the newline is missing
    if complete == 0:
        with pytest.raises(ValueError, match="no message in it"):
            recover(path)
        return
    wire_samples.assert_same(recover(path), live(MESSAGES[:complete]))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(LINES)), st.binary(min_size=1, max_size=80))
def test_a_damaged_line_loses_nothing_but_itself(tmp_path_factory, index, damage):
    damage = damage.replace(b"\n", b" ")
    lines = [*LINES[:index], damage + b"\n", *LINES[index:]]
    path = write(tmp_path_factory.getbasetemp() / "damaged.journal", *lines)
    wire_samples.assert_same(recover(path), live(MESSAGES))


def test_what_was_left_out_is_told_at_the_end_also_of_a_second_runner(tmp_path):
    runners = [*MESSAGES, *wire_samples.stream(seed=3, created=1.7e9 + 1000)]
    misfit = protocol.Steps(segment=9, columns={"t_s": [1.0]})
    path = write(tmp_path / "two.journal", *map(protocol.encode, [*runners, misfit]))
    times = [event.t_s for event in recover(path).events]
    assert max(times) == times[-1] >= 1000


def test_messages_that_fit_nowhere_are_left_out_and_counted(tmp_path):
    misfits = [
        protocol.Steps(segment=9, columns={"t_s": [1.0]}),
        protocol.Steps(segment=0, columns={"t_s": [1.0], "wall_ms": []}),
    ]
    path = write(tmp_path / "a.journal", *LINES[:-1], *map(protocol.encode, misfits), LINES[-1])
    recovered = recover(path)
    last = recovered.events.pop()
    assert (last.kind, last.text) == (
        "warning",
        "2 of the journal's messages could not be read and were left out",
    )
    wire_samples.assert_same(recovered, live(MESSAGES))


def test_a_runner_that_died_within_a_line_does_not_swallow_the_next_ones_catalogue(tmp_path):
    second = wire_samples.stream(seed=5, created=1.7e9 + 60)
    written = Journal(tmp_path / "a.journal")
    for line in LINES[:-1]:
        written.append(line)
    written.append(LINES[-1][:-7])
    for message in second:
        written.append(protocol.encode(message))
    written.close()
    wire_samples.assert_same(recover(written.path), live([*MESSAGES[:-1], *second]))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no message in it"),
        (b"hello\n" * 3, "no message in it"),
        (b"\x89HDF\r\n", "no message"),
    ],
)
def test_what_is_no_journal_is_refused_by_one_sentence(tmp_path, content, sentence):
    path = write(tmp_path / "x.journal", content)
    with pytest.raises(ValueError, match=sentence) as refusal:
        recover(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_missing_journal_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        recover(tmp_path / "none.journal")
    with pytest.raises(IsADirectoryError):
        list(replay(tmp_path))


def test_a_device_without_an_end_or_a_file_of_one_line_is_no_journal(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="it is not a regular file"):
        recover(Path("/dev/zero"))
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(1 << 20))
    sizes = []
    monkeypatch.setattr(protocol, "decode_message", lambda line: sizes.append(len(line)))
    monkeypatch.setattr(throttle.bounded_lines, "__defaults__", (1000,))
    list(replay(path))
    assert max(sizes) <= 1001


def test_a_journal_is_unfinished_once_its_process_is_gone_and_not_before():
    script = (
        "import sys\nfrom workbench.client.journal import Journal\n"
        "kept = Journal()\nprint(kept.path, flush=True)\nsys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    path = child.stdout.readline().strip()
    assert unfinished() == []
    child.kill()
    child.wait()
    assert [str(path_found) for path_found in unfinished()] == [path]
    child.stdin.close()
    child.stdout.close()


def test_a_journal_left_behind_by_a_process_of_the_same_number_is_offered():
    """In a container every window may be process 7."""
    state_folder.path().mkdir(parents=True)
    left = write(state_folder.path() / f"20260101-120000-{os.getpid()}.journal", WHOLE)
    own = Journal()
    assert unfinished() == [left]
    own.close(keep=False)


def test_journals_of_one_second_are_files_of_their_own():
    opened = [Journal() for _ in range(3)]
    assert len({written.path for written in opened}) == 3
    for written in opened:
        written.close()


def test_the_oldest_journals_are_forgotten_and_the_newest_kept():
    state_folder.path().mkdir(parents=True)
    for age in range(journal.KEPT + 5):
        left = write(state_folder.path() / f"old-{age:02}.journal", WHOLE)
        os.utime(left, (1e9 - age, 1e9 - age))
    Journal().close(keep=False)
    assert [path.stem for path in unfinished()] == [f"old-{age:02}" for age in range(journal.KEPT)]
