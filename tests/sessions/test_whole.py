"""A file is written whole or not at all, whatever lies in its place and whatever goes wrong."""

from __future__ import annotations

import os
import threading

import pytest

from sessions import whole


def test_an_old_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    file, link = tmp_path / "a.json", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o640)
    link.symlink_to(file)
    whole.write(link, b"new")
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
        whole.write(file, b"new")
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    whole.write(pipe, b"through")
    reader.join()
    assert read == [b"through"] and pipe.is_fifo()
