"""Changed session files: used or refused with a sentence, and nothing else.

``python tests/workbench/fuzz_sessions.py --files 10000`` does the same with more files.
"""

from __future__ import annotations

import os

import fuzz_sessions
import pytest

from sessions.storage import hdf5

# Seeds of CI; a file whose seed once failed belongs here too.
FAILED = (1309, 2057, 2601, 5317)
FIRST, FILES = 0, int(os.environ.get("WORKBENCH_FUZZED_FILES", "10"))


def test_changed_files_are_used_or_refused_with_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(hdf5, "checked_copy", hdf5.checked_copy)  # put back what fuzz() replaces
    counts, wrong = fuzz_sessions.fuzz(FIRST, FILES, drawn=0, folder=tmp_path)
    assert not wrong, "\n".join(wrong)
    assert counts["used"] and counts["refused"], counts


@pytest.mark.parametrize("seed", FAILED)
def test_files_that_once_failed_are_used_or_refused(seed, monkeypatch, tmp_path):
    monkeypatch.setattr(hdf5, "checked_copy", hdf5.checked_copy)
    _, wrong = fuzz_sessions.fuzz(seed, 1, drawn=0, folder=tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("number", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_the_check_in_a_process_of_its_own_ends_as_the_one_in_a_fork(number, tmp_path, monkeypatch):
    path = tmp_path / "s.h5"
    fuzz_sessions.make(path, number, fuzz_sessions.bases()[:1])
    ends = []
    for check in (hdf5.checked_copy, fuzz_sessions.forked_copy):
        monkeypatch.setattr(hdf5, "checked_copy", check)
        try:
            ends.append(hdf5.load(path).title)
        except hdf5.SessionError as error:
            ends.append(str(error))
    assert ends[0] == ends[1]
