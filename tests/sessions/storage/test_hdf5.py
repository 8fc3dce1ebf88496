"""Round trip, replacement and what the file looks like to others."""

from __future__ import annotations

import hashlib
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


def test_column_of_another_program_survives(tmp_path):
    session = samples.session(n=4)
    session.segments[0].steps["loss"] = np.array([4.0, 3.0, 2.0, np.nan])
    hdf5.save(session, tmp_path / "s.h5")
    hdf5.save(hdf5.load(tmp_path / "s.h5"), tmp_path / "t.h5")
    loaded = hdf5.load(tmp_path / "t.h5")
    np.testing.assert_array_equal(loaded.segments[0].steps["loss"], [4.0, 3.0, 2.0, np.nan])


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
