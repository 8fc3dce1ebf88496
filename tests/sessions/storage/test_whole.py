"""A file is written whole or not at all, whatever lies in its place and whatever goes wrong."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sessions.storage import atomic_write


def test_an_old_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    file, link = tmp_path / "a.json", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o640)
    link.symlink_to(file)
    atomic_write.write(link, b"new")
    assert link.is_symlink() and file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "link"]


def test_a_disk_that_fails_half_way_leaves_the_old_file_and_nothing_beside_it(
    tmp_path, monkeypatch
):
    def fails(_descriptor):
        raise OSError(28, "No space left on device")

    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        atomic_write.write(file, b"new")
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    pipe, end = tmp_path / "pipe", socket.socket(socket.AF_UNIX)
    os.mkfifo(pipe)
    with end:
        end.bind(str(tmp_path / "socket"))
        for path, kind in [
            (pipe, "a named pipe"),
            (tmp_path / "socket", "a socket"),
            (Path("/dev/null"), "a device"),
            (tmp_path, "a folder"),
        ]:
            with pytest.raises(OSError, match=f"it is {kind}"):
                atomic_write.write(path, b"new")
    assert pipe.is_fifo() and not list(tmp_path.glob("*.partial"))


def test_a_read_only_file_is_refused_also_for_the_superuser(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    file.chmod(0o444)
    with pytest.raises(OSError, match="the file is read-only"):
        atomic_write.write(file, b"new")
    assert file.read_bytes() == b"old"


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "[*?]" + "y" * 251])
def test_a_name_may_be_as_long_as_the_file_system_allows(name, tmp_path):
    file = tmp_path / name
    for content in (b"old", b"new"):
        atomic_write.write(file, content)
    assert file.read_bytes() == b"new" and list(tmp_path.iterdir()) == [file]


def test_two_long_names_that_begin_alike_have_leftovers_of_their_own(tmp_path):
    first, second = (tmp_path / ("x" * 254 + last) for last in "ab")
    with atomic_write.replacing(first) as temporary:
        temporary.write_bytes(b"unfinished")
        atomic_write.write(second, b"done")
        assert temporary.exists()
    assert first.read_bytes() == b"unfinished"


KILLED = """
import os, signal, sys
from pathlib import Path
from sessions.storage import atomic_write
with atomic_write.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    print(temporary, flush=True)
    sys.stdin.read()
"""


def test_the_next_save_removes_what_a_killed_one_left_and_no_file_of_a_save_in_progress(tmp_path):
    file = tmp_path / "a.json"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        temporary = Path(child.stdout.readline().decode().strip())
        atomic_write.write(file, b"first")
        assert temporary.exists(), "its process is still writing it"
        child.kill()
    assert temporary.exists()
    atomic_write.write(file, b"second")
    assert list(tmp_path.iterdir()) == [file] and file.read_bytes() == b"second"


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks"), NotImplementedError()])
def test_where_there_are_no_locks_a_save_in_progress_keeps_its_file(tmp_path, monkeypatch, error):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr(atomic_write.FileLock, "acquire", refuse)
    file = tmp_path / "a.json"
    with atomic_write.replacing(file) as temporary:
        temporary.write_bytes(b"first")
        atomic_write.write(file, b"second")
        assert temporary.exists(), "nobody can know that its process has ended"
    assert file.read_bytes() == b"first" and list(tmp_path.iterdir()) == [file]


def test_a_private_file_is_its_users_alone(tmp_path):
    for private, expected in ((True, 0), (False, 0o044)):
        file = tmp_path / f"{private}.json"
        before = os.umask(0o022)
        atomic_write.write(file, b"", private=private)
        os.umask(before)
        assert file.stat().st_mode & 0o077 == expected
