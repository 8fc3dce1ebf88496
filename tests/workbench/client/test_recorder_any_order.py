"""Whatever messages arrive, in any order: they are refused, or make a session that opens."""

from __future__ import annotations

import math

import pytest
import wire_samples
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import Phase
from sessions.plain_text import plain
from sessions.storage import hdf5
from sessions.storage.content import cleaned
from workbench import protocol
from workbench.client.recorder import Recorder

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-2, 300)

entries = st.dictionaries(
    st.sampled_from(
        ["early_loss", "own_peak_bytes", "text", "parameters", "exponent", "seconds", "other"]
    ),
    st.none() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=3),
)

times_s = st.floats(-10, 100) | st.floats(allow_nan=False)

columns = st.dictionaries(
    st.sampled_from(["t_s", "wall_ms", "phase", "block", "busy", "throttle", "other"]),
    st.lists(numbers.map(lambda value: None if value is None else float(value)), max_size=3),
)

indices = st.integers(-2, 4)

wild_messages = st.one_of(
    st.builds(protocol.Steps, segment=indices, columns=columns),
    st.builds(
        protocol.StudyStarted,
        t_s=times_s,
        index=indices,
        kind=st.sampled_from(["sweep", "checklist", "attribution", "of a plug-in"]),
        title=st.text(max_size=3),
        request=entries,
    ),
    st.builds(protocol.StudyFacts, study=indices, facts=entries),
    st.builds(protocol.Note, t_s=times_s, kind=st.text(max_size=3), text=st.text(max_size=3)),
    st.builds(protocol.TelemetrySamples, device=st.sampled_from(["cpu", "gpu0"]), columns=columns),
    st.builds(protocol.PhaseChanged, t_s=times_s, segment=indices, phase=st.integers(-2, 300)),
    st.builds(
        protocol.Metrics,
        segment=indices,
        values=st.dictionaries(
            st.sampled_from(["load", "rank", "other"]),
            st.lists(st.lists(st.none() | st.floats(allow_nan=False), max_size=3), max_size=2),
        ),
    ),
    st.builds(protocol.Facts, segment=indices, ledger=entries),
    st.builds(protocol.EvidenceFound, segment=indices, evidence=st.just([])),
    st.builds(
        protocol.StudyRows,
        study=indices,
        table=st.sampled_from(["points", "other"]),
        columns=st.dictionaries(
            st.sampled_from(["arm", "x", "outcome", "median_ms"]),
            st.lists(st.none() | st.floats(allow_nan=False) | st.text(max_size=3), max_size=2),
        ),
        replace=st.booleans(),
    ),
    st.sampled_from(wire_samples.stream(segments=2)),
)


@pytest.mark.filterwarnings("error")
@given(st.lists(wild_messages, max_size=12))
def test_any_order_of_messages_is_refused_or_makes_a_session_that_opens_everywhere(messages):
    recorder = Recorder()
    for message in messages:
        try:
            recorder.record(message)
        except protocol.WireError:
            continue
    for segment in recorder.session.segments:
        assert len({len(values) for values in segment.steps.values()}) == 1
        assert set(segment.steps["phase"]) <= set(map(int, Phase))
        assert all(math.isfinite(span.stop_s) for span in segment.phases)
    cleaned(recorder.session)


def test_every_beginning_of_a_runners_messages_is_a_session_that_opens_everywhere():
    recorder = Recorder()
    for message in wire_samples.stream():
        recorder.record(message)
        cleaned(recorder.session)


NAMES = ["/", ".", "..", "", " ", "\n", "\x00", "\u202e", "%2F"]
NAMES += ["/" * 200, "é" * 255, "😀" * 100, "x" * 255]


def test_any_name_that_is_recorded_is_one_that_a_file_of_another_account_may_have(
    tmp_path, monkeypatch
):
    recorder = Recorder()
    for message in wire_samples.stream():
        recorder.record(message)
    for index, name in enumerate(NAMES, 1):
        for message in (
            protocol.Metrics(segment=0, values={name: [[1.0]]}),
            protocol.TelemetrySamples(device=name, columns={"t_s": [1.0]}),
            protocol.EnvironmentFound(facts={name: name}),
            protocol.Facts(segment=0, ledger={name: name}),
            protocol.Note(kind=name, text=name),
            protocol.StudyStarted(index=index, kind=name, title=name, request={name: name}),
            protocol.Described(title=name, notes=name),
        ):
            recorder.record(message)
    hdf5.save(recorder.session, tmp_path / "a.h5")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another account"))
    opened = hdf5.load(tmp_path / "a.h5")
    assert len(opened.studies) == len(recorder.session.studies) == 1 + len(NAMES)
    metrics = {plain(name) for name in recorder.session.segments[0].metrics}
    assert set(opened.segments[0].metrics) == metrics
