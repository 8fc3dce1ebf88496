"""Columns of a saved session are read one by one, when they are used."""

from __future__ import annotations

import gc
import os
import threading

import h5py
import numpy as np
import pytest
import session_samples as samples

from sessions.columns import row_count
from sessions.errors import SessionError
from sessions.model import STEP_COLUMNS, Configuration, Segment, Session
from sessions.storage import hdf5


def test_opening_reads_no_long_column_and_reading_one_reads_no_other(tmp_path, monkeypatch):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(n=5000, segments=3), path)
    read: list[str] = []
    original = h5py.Dataset.__getitem__

    def counted(dataset, *arguments, **options):
        read.append(dataset.name)
        return original(dataset, *arguments, **options)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)
    session = hdf5.load(path)
    assert not [name for name in read if "/steps/" in name or "/telemetry/" in name]

    read.clear()
    column = session.segments[1].steps["gpu_ms"]
    assert read == ["/segments/0001/steps/gpu_ms"]
    assert session.segments[1].steps["gpu_ms"] is column
    assert len(read) == 1
    assert session.segments[1].steps.read_so_far == {"gpu_ms"}
    assert session.segments[0].steps.read_so_far == frozenset()


def test_row_count_of_a_loaded_table_reads_nothing(tmp_path):
    hdf5.save(samples.session(n=17), tmp_path / "s.h5")
    table = hdf5.load(tmp_path / "s.h5").segments[0].steps
    assert row_count(table) == 17
    assert table.read_so_far == frozenset()


def test_reading_one_column_reads_a_small_part_of_the_file(tmp_path):
    path = tmp_path / "s.h5"
    rng = np.random.default_rng(0)
    steps = samples.steps(200_000) | {"allocated": rng.random(200_000), "peak": rng.random(200_000)}
    session = Session(segments=[Segment(0, Configuration(family="f", preset="p"), "", steps=steps)])
    hdf5.save(session, path)
    loaded = hdf5.load(path)
    with open("/proc/self/io") as counters:  # noqa: PTH123
        before = int(counters.readline().split()[1])
    loaded.segments[0].steps["wall_ms"]
    with open("/proc/self/io") as counters:  # noqa: PTH123
        after = int(counters.readline().split()[1])
    assert after - before < path.stat().st_size / 3


def test_loaded_columns_cannot_be_written_to(tmp_path):
    hdf5.save(samples.session(), tmp_path / "s.h5")
    column = hdf5.load(tmp_path / "s.h5").segments[0].steps["gpu_ms"]
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


def test_unknown_column_is_a_key_error(tmp_path):
    hdf5.save(samples.session(), tmp_path / "s.h5")
    steps = hdf5.load(tmp_path / "s.h5").segments[0].steps
    with pytest.raises(KeyError):
        steps["nonsense"]
    assert "nonsense" not in steps
    assert set(steps) == set(STEP_COLUMNS)
    assert len(steps) == len(STEP_COLUMNS)


def test_column_that_a_file_lacks_is_nan_or_zero(tmp_path):
    session = samples.session(n=4)
    del session.segments[0].steps["gpu_ms"], session.segments[0].steps["block"]
    hdf5.save(session, tmp_path / "s.h5")
    steps = hdf5.load(tmp_path / "s.h5").segments[0].steps
    assert np.isnan(steps["gpu_ms"]).tolist() == [True] * 4
    assert steps["block"].tolist() == [0] * 4
    assert steps["gpu_ms"].dtype == "f4"


def test_a_session_goes_on_reading_after_its_file_is_deleted_or_replaced(tmp_path):
    path = tmp_path / "s.h5"
    original = samples.session(n=100)
    expected = samples.content(original)
    hdf5.save(original, path)
    deleted, replaced = hdf5.load(path), hdf5.load(path)
    path.unlink()
    assert samples.content(deleted) == expected
    hdf5.save(samples.session(n=7, segments=1), path)
    assert samples.content(replaced) == expected
    assert row_count(hdf5.load(path).segments[0].steps) == 7


def test_no_file_stays_open_after_the_session_is_gone(tmp_path):
    def open_files():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    path = tmp_path / "s.h5"
    hdf5.save(samples.session(), path)
    gc.collect()
    before = open_files()
    for _ in range(20):
        hdf5.load(path).segments[0].steps["t_s"]
        with pytest.raises(SessionError):
            hdf5.load(tmp_path)
    gc.collect()
    assert open_files() == before


def test_columns_can_be_read_from_many_threads(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(n=2000, segments=6), path)
    session = hdf5.load(path)
    failures: list[BaseException] = []

    def read(names):
        try:
            for name in names:
                for number, segment in enumerate(session.segments):
                    expected = samples.steps(2000, seed=number)[name]
                    np.testing.assert_array_equal(segment.steps[name], expected)
        except BaseException as error:  # noqa: BLE001 - reported in the main thread
            failures.append(error)

    names = list(STEP_COLUMNS)
    threads = [
        threading.Thread(target=read, args=(names[k:] + names[:k],)) for k in range(len(names))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
