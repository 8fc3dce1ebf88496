"""Changed session files: used or refused with a sentence, and nothing else.

``python tests/workbench/fuzzing/fuzz_sessions.py --files 10000`` does the same with more files.
"""

from __future__ import annotations

import io
import os

import fuzz_sessions
import h5py
import numpy as np
import pytest
from session_mutations import things
from synthetic import gpu_session

from sessions.storage import hdf5

# Columns whose files once failed: in another type, as another program may write them, or all zero.
RETYPED = {
    "blocks/joules": "i1", "kernels/calls": "f2", "kernels/us": "f4", "arms/mse": "f4",
    "fits/y": "i1", "arms/rounds": "i1", "points/x": "f4", "memory/reserved": "?",
    "fits/exponent": "f2",
}  # fmt: skip
ZEROS = ("steps/gpu_ms", "steps/wall_ms", "blocks/clock_mhz", "effects/low", "effects/ratio",
         "fits/factor", "memory/t_ms")  # fmt: skip
FIRST, FILES = 0, int(os.environ.get("WORKBENCH_FUZZED_FILES", "7"))


def test_changed_files_are_used_or_refused_with_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(hdf5, "checked_copy", hdf5.checked_copy)  # put back what fuzz() replaces
    counts, wrong = fuzz_sessions.fuzz(FIRST, FILES, drawn=0, folder=tmp_path)
    assert not wrong, "\n".join(wrong)
    assert counts["used"] and counts["refused"], counts


@pytest.fixture(scope="module")
def contents():
    return fuzz_sessions.bases()


def columns_of(content, columns):
    """Return the columns of the file that have one of these names, by name."""
    with h5py.File(io.BytesIO(content)) as file:
        names = things(file, h5py.Dataset)
    names_by_column = {column: [n for n in names if n.endswith(f"/{column}")] for column in columns}
    return {column: names for column, names in names_by_column.items() if names}


def use_changed(content, columns, mutation, tmp_path):
    """Apply ``mutation(file, name, column)`` to the columns of a file and use the file."""
    other = tmp_path / "other.h5"
    hdf5.save(gpu_session(steps=40), other)
    path = tmp_path / "changed.h5"

    def change(file):
        for column, names in columns_of(content, columns).items():
            for name in names:
                mutation(file, name, column)
        return str(columns)

    fuzz_sessions.change(path, content, change)
    return fuzz_sessions.use(path, other, False, tmp_path / "checked.h5")


def smallest(contents, column):
    """Return the smallest file with such a column."""
    return min((content for content in contents if columns_of(content, [column])), key=len)


def test_study_columns_of_other_types_are_used_as_numbers(contents, tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "checked_copy", fuzz_sessions.forked_copy)

    def retype(file, name, column):
        values = file[name][()]
        del file[name]
        file.create_dataset(name, data=np.ones(len(values)).astype(RETYPED[column]))

    missing = set(RETYPED)
    for content in sorted(contents, key=len):
        if columns := missing & columns_of(content, RETYPED).keys():
            assert use_changed(content, columns, retype, tmp_path) == "used", columns
            missing -= columns
    assert not missing


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "column", [*ZEROS[:3], *(pytest.param(column, marks=pytest.mark.slow) for column in ZEROS[3:])]
)
def test_columns_of_zeros_are_used_or_refused_with_a_sentence(
    contents, column, tmp_path, monkeypatch
):
    monkeypatch.setattr(hdf5, "checked_copy", fuzz_sessions.forked_copy)

    def clear(file, name, _):
        file[name][...] = 0

    ended = use_changed(smallest(contents, column), [column], clear, tmp_path)
    assert ended in ("used", "refused")


def test_a_profile_whose_memory_has_no_times_is_refused(contents, tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "checked_copy", fuzz_sessions.forked_copy)

    def remove(file, name, _):
        del file[name]

    column = "memory/t_ms"
    assert use_changed(smallest(contents, column), [column], remove, tmp_path) == "refused"


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
