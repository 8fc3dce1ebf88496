"""Round trip, laziness, replacement and what the file looks like to others."""

from __future__ import annotations

import gc
import hashlib
import os
import stat
import threading

import h5py
import numpy as np
import pytest
import session_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions import accept, schema
from sessions.columns import Columns, row_count
from sessions.errors import SessionError
from sessions.model import STEP_COLUMNS, Configuration, Segment, Session
from sessions.storage import hdf5


@given(samples.sessions)
@settings(max_examples=40, deadline=None)
def test_any_session_comes_back_as_it_was(tmp_path_factory, session):
    path = tmp_path_factory.getbasetemp() / "any.h5"
    hdf5.save(session, path)
    assert samples.content(hdf5.load(path)) == samples.content(session)


@given(st.text(st.characters()), st.text(st.characters()))
@settings(max_examples=60, deadline=None)
def test_text_that_hdf5_cannot_hold_is_saved_with_replacement_characters(
    tmp_path_factory, title, value
):
    path = tmp_path_factory.getbasetemp() / "text.h5"
    hdf5.save(Session(title=title, environment={"x": value}), path)
    loaded = hdf5.load(path)
    for before, after in ((title, loaded.title), (value, loaded.environment["x"])):
        assert len(before) == len(after)
        for old, new in zip(before, after, strict=True):
            storable = old != "\0" and not 0xD800 <= ord(old) < 0xE000
            assert new == (old if storable else "\ufffd")


def test_ledger_keeps_text_that_hdf5_cannot_hold(tmp_path):
    ledger = {"torn": "a\0b\udc80c"}
    segment = Segment(0, Configuration(family="f", preset="p"), "s", ledger=ledger)
    hdf5.save(Session(segments=[segment]), tmp_path / "s.h5")
    assert hdf5.load(tmp_path / "s.h5").segments[0].ledger == ledger


def test_numpy_numbers_in_a_ledger_are_saved_as_plain_ones(tmp_path):
    ledger = {"count": np.int64(3), "share": np.float32(0.5), "row": np.arange(3)}
    segment = Segment(0, Configuration(family="f", preset="p"), "s", ledger=ledger)
    hdf5.save(Session(segments=[segment]), tmp_path / "s.h5")
    loaded = hdf5.load(tmp_path / "s.h5").segments[0].ledger
    assert loaded == {"count": 3, "share": 0.5, "row": [0, 1, 2]}


def test_ledger_that_json_cannot_hold_is_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(), path)
    before = path.read_bytes()
    session = samples.session()
    session.segments[1].ledger["thing"] = object()
    with pytest.raises(SessionError, match=r"ledger of segment 0001 cannot be saved: .* object"):
        hdf5.save(session, path)
    assert path.read_bytes() == before


def test_columns_of_differing_lengths_are_not_saved(tmp_path):
    session = samples.session(n=10)
    session.segments[0].steps["wall_ms"] = np.ones(9, "f4")
    with pytest.raises(ValueError, match=r"steps/wall_ms has shape \(9,\), expected \(10,\)"):
        hdf5.save(session, tmp_path / "s.h5")
    assert list(tmp_path.iterdir()) == []


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


def test_metrics_are_matrices_in_the_file_and_read_only_when_asked_for(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(n=300), path)
    with h5py.File(path) as file:
        values = file["segments/0001/metrics/load/values"]
        assert values.shape == (30, 2, 3)
        assert values.attrs["units"] == "tokens" and values.attrs["description"]
        assert values.compression == "gzip" and values.fletcher32
    series = hdf5.load(path).segments[1].metrics["load"]
    assert (series.shape, row_count(series.table)) == ((2, 3), 30)
    assert series.table.read_so_far == frozenset()
    np.testing.assert_array_equal(series.table["values"], samples.metric(30).table["values"])
    assert series.table.read_so_far == {"values"}


def test_metrics_keep_their_order_and_have_one_by_name_in_files_without(tmp_path):
    path, made = tmp_path / "s.h5", samples.session(n=20)
    metrics = made.segments[1].metrics
    metrics |= {"gate": samples.metric(2)}
    before = [*metrics]
    hdf5.save(made, path)
    metrics = hdf5.load(path).segments[1].metrics
    assert [*metrics] == before == ["load", "gate/µ", "gate"]
    with h5py.File(path, "r+") as file:
        for group in file["segments/0001/metrics"].values():
            del group.attrs["index"]
    assert accept.main([str(path)]) == 0
    metrics = hdf5.load(path).segments[1].metrics
    assert [*metrics] == ["gate", "load", "gate/µ"]


def test_a_file_from_before_there_were_metrics_opens_without_any(tmp_path):
    session = samples.session(n=10)
    for segment in session.segments:
        segment.metrics = {}
    hdf5.save(session, tmp_path / "s.h5")
    with h5py.File(tmp_path / "s.h5") as file:
        assert "metrics" not in file["segments/0000"]
    assert hdf5.load(tmp_path / "s.h5").segments[0].metrics == {}


def test_a_metric_of_another_shape_than_it_says_is_not_saved(tmp_path):
    session = samples.session(n=10)
    session.segments[0].metrics["load"].shape = (3, 2)
    with pytest.raises(ValueError, match=r"values has shape \(1, 2, 3\), expected \(1, 3, 2\)"):
        hdf5.save(session, tmp_path / "s.h5")


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


def test_column_of_another_program_survives(tmp_path):
    session = samples.session(n=4)
    session.segments[0].steps["loss"] = np.array([4.0, 3.0, 2.0, np.nan])
    hdf5.save(session, tmp_path / "s.h5")
    hdf5.save(hdf5.load(tmp_path / "s.h5"), tmp_path / "t.h5")
    loaded = hdf5.load(tmp_path / "t.h5")
    np.testing.assert_array_equal(loaded.segments[0].steps["loss"], [4.0, 3.0, 2.0, np.nan])


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


def test_a_loaded_session_can_be_saved_over_its_own_file(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(), path)
    for turn in range(3):
        session = hdf5.load(path)
        session.title = f"turn {turn}"
        hdf5.save(session, path)
    expected = samples.session()
    expected.title = "turn 2"
    assert samples.content(hdf5.load(path)) == samples.content(expected)


def test_title_and_notes_are_changed_and_nothing_else(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(), path)
    hdf5.update_notes(path, title="new title")
    hdf5.update_notes(path, notes="new notes")
    expected = samples.session()
    expected.title, expected.notes = "new title", "new notes"
    assert samples.content(hdf5.load(path)) == samples.content(expected)


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


def test_a_growing_session_is_saved_with_columns_of_one_length(tmp_path):
    path = tmp_path / "s.h5"
    columns = Columns(STEP_COLUMNS)
    columns.append(samples.steps(50))
    session = Session(
        segments=[Segment(0, Configuration(family="f", preset="p"), "live", steps=columns)]
    )
    stop = threading.Event()

    def grow():
        while not stop.wait(5e-4):  # unbounded, it outgrew its saving on a busy machine
            columns.append(samples.steps(50))

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(10):
            hdf5.save(session, path)
            steps = hdf5.load(path).segments[0].steps
            rows = {len(steps[name]) for name in steps}
            assert len(rows) == 1
            assert rows.pop() >= 50
    finally:
        stop.set()
        thread.join()


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


def test_other_hdf5_programs_find_every_part_described(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(n=3), path)
    undescribed = []
    with h5py.File(path) as file:

        def visit(name, item):
            wanted = {"description"} | ({"units"} if isinstance(item, h5py.Dataset) else set())
            undescribed.extend((name, missing) for missing in wanted - set(item.attrs))

        file.visititems(visit)
        assert file.attrs["format"] == "gpu-optimization-workbench session"
        assert file.attrs["version"] == 1
        assert file.attrs["title"] == "sample"
        steps = file["segments/0001/steps"]
        assert set(steps) == set(schema.STEPS)
        assert steps["wall_ms"].attrs["units"] == "ms"
        assert file["telemetry/gpu0/power_w"].attrs["units"] == "W"
        assert file["events/text"].asstr()[0] == "compile: off to max-autotune"
        names, values = (file["environment"][part].asstr()[()] for part in ("name", "value"))
        assert dict(zip(names, values, strict=True))["gpu"] == "H200"
        assert '"batch": 5' in file["segments/0001"].attrs["configuration"]
        assert file["segments/0000/phases"]["stop_s"].tolist() == [0.5, 9.0]
        assert file["comparisons/0000/blocks/arm"][()].tolist() == [0, 1, 1, 0]
    assert undescribed == []


def test_long_columns_are_chunked_compressed_and_checksummed(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(n=100_000, segments=1), path)
    with h5py.File(path) as file:
        for name in schema.STEPS:
            column = file[f"segments/0000/steps/{name}"]
            assert column.chunks == (65536,)
            assert (column.compression, column.shuffle, column.fletcher32) == ("gzip", True, True)
    assert path.stat().st_size < 0.4 * 100_000 * 45


def test_the_checksum_can_be_checked_without_this_program(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(), path)
    content = path.read_bytes()
    head, rest = content[:512].decode(), content[512:]
    assert f"bytes {len(content)}\n" in head
    assert f"sha256 of byte 512 on: {hashlib.sha256(rest).hexdigest()}\n" in head


def test_the_columns_of_a_study_keep_their_order(tmp_path):
    hdf5.save(samples.session(), tmp_path / "a.h5")
    (study,) = hdf5.load(tmp_path / "a.h5").studies
    assert list(study.tables["points"]) == ["value", "outcome"]


def test_saving_the_same_session_twice_gives_the_same_bytes(tmp_path):
    hdf5.save(samples.session(), tmp_path / "a.h5")
    hdf5.save(hdf5.load(tmp_path / "a.h5"), tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_saving_keeps_the_mode_of_the_file_and_follows_a_link(tmp_path):
    target, link = tmp_path / "target.h5", tmp_path / "link.h5"
    hdf5.save(samples.session(), target)
    target.chmod(0o640)
    link.symlink_to(target)
    hdf5.save(samples.session(n=5), link)
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert row_count(hdf5.load(target).segments[0].steps) == 5


def test_saving_removes_what_a_killed_save_left(tmp_path):
    path = tmp_path / "a[1].h5"
    (tmp_path / ".a[1].h5.00.partial").write_bytes(b"half")
    hdf5.save(samples.session(), path)
    assert list(tmp_path.iterdir()) == [path]
