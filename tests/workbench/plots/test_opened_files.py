"""Files of many segments are opened as often as files of few, whatever is read of them."""

from __future__ import annotations

import h5py
import pytest
from synthetic import gpu_session

from workbench import cli
from workbench.plots import Run
from workbench.report import _page
from workbench.ui.panels.compare import work_out
from workbench.ui.state import session_files


@pytest.fixture
def opened(monkeypatch):
    """Return the files that HDF5 has opened."""
    calls = []
    original = h5py.File

    def note(*arguments, **options):
        calls.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(h5py, "File", note)
    return calls


def saved(tmp_path, segments):
    paths = [tmp_path / f"{segments}-{seed}.h5" for seed in (0, 1)]
    for seed, path in enumerate(paths):
        session_files.write(gpu_session(segments=segments, steps=60, seed=seed), path)
    return paths


def compared(paths) -> None:
    runs = [Run(session_files.read(path)) for path in paths]
    assert work_out(runs, 0, [None, None]).comparison is not None


def print_comparison(paths) -> None:
    assert cli.main(["compare", *map(str, paths)]) == 0


def reported(paths) -> None:
    runs = [Run(session_files.read(path)) for path in paths]
    assert "%3Csvg" in _page.page(runs, sections=["segments"])


SLOW = [pytest.param(read, marks=pytest.mark.slow) for read in (print_comparison, reported)]


@pytest.mark.parametrize("read", [compared, *SLOW])
def test_more_segments_open_a_file_no_more_often(qapp, tmp_path, opened, read):
    counts = []
    for segments in (2, 8):
        paths = saved(tmp_path, segments)
        opened.clear()
        read(paths)
        counts.append(len(opened))
    assert counts[0] == counts[1] > 0


def test_what_is_at_hand_can_be_read_on_though_its_file_was_written_to(qapp, tmp_path):
    paths = saved(tmp_path, 2)
    runs = [Run(session_files.read(path)) for path in paths]
    assert work_out(runs, 0, [None, None]).comparison is not None
    with paths[0].open("ab") as file:
        file.write(b"more")
    assert work_out(runs, 0, [None, None]).comparison is not None
