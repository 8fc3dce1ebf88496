"""The state folder is its user's alone, and a person hears when it goes away in a run."""

from __future__ import annotations

import os
import shutil
import stat

import pytest
import wire_samples

from sessions.storage import hdf5
from workbench import protocol, state_folder
from workbench.cli import main
from workbench.client import journal
from workbench.client.journal import Journal


def modes() -> dict[str, int]:
    folder = state_folder.path()
    return {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *sorted(folder.iterdir()))
    }


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_folder_and_files_of_an_earlier_version_are_closed_to_others():
    folder = state_folder.path()
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    for name in ("calibration.json", "old.journal"):
        (folder / name).write_bytes(b"{}")
    own = Journal()
    own.write(protocol.Note(kind="note", text="n"))
    assert set(modes().values()) == {0o700, 0o600} and len(modes()) == 5
    own.close()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_folder_that_disappears_in_a_run_is_told_once(how, monkeypatch):
    monkeypatch.setattr(journal, "CHECK_S", 0.0)
    written = Journal()
    written.append(b"{}")
    assert written.complaint() is None
    if how == "removed":
        shutil.rmtree(state_folder.path())
    else:
        written.path.unlink()
        written.path.write_bytes(b"")
    for _ in range(3):
        written.append(b"{}")
    complaint = written.complaint()
    assert f"{written.path} was removed or moved by another program" in complaint.sentence
    assert written.complaint() is None
    written.close()


def test_recover_passes_over_a_journal_without_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = Journal()
    for message in wire_samples.stream():
        left.write(message)
    left.close()
    os.utime(left.path, (1, 1))
    Journal().close()
    assert main(["recover", "-o", "a.h5"]) == 0
    assert len(hdf5.load(tmp_path / "a.h5").segments) == 3


def test_a_damaged_first_line_of_a_segment_loses_that_line_alone(tmp_path):
    messages = wire_samples.stream()
    lines = [protocol.encode(message) for message in messages]
    begun = [
        n for n, message in enumerate(messages) if isinstance(message, protocol.SegmentStarted)
    ]
    path = tmp_path / "a.journal"

    def recovered(damaged: int):
        path.write_bytes(b"".join([*lines[:damaged], b"\0" * 40 + b"\n", *lines[damaged + 1 :]]))
        return journal.recover(path)

    path.write_bytes(b"".join(lines))
    undamaged = journal.recover(path)
    for number, line in enumerate(begun):
        session = recovered(line)
        assert [len(segment.steps["t_s"]) for segment in session.segments] == [
            len(segment.steps["t_s"]) for segment in undamaged.segments
        ]
        assert session.segments[number].label == journal.RECOVERED_LABEL


def test_a_line_end_that_was_damaged_loses_nothing(tmp_path):
    lines = [protocol.encode(message) for message in wire_samples.stream()]
    path = tmp_path / "a.journal"
    path.write_bytes(b"".join(lines))
    undamaged = journal.recover(path)
    path.write_bytes(lines[0] + b"\0\0".join(line.rstrip(b"\n") for line in lines[1:]))
    wire_samples.assert_same(journal.recover(path), undamaged)


@pytest.mark.parametrize("kind", ["pipe", "device", "read-only"])
def test_a_session_is_not_saved_where_no_file_can_be_before_anything_is_run(kind, tmp_path, capsys):
    path = tmp_path / "a.h5"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/null")
    else:
        path.write_bytes(b"")
        path.chmod(0o444)
    assert main(["run", "hydra", "-o", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "choose another place" in line
