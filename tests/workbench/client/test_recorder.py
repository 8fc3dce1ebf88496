"""Messages become a session; what does not fit is refused and leaves the session as it was."""

from __future__ import annotations

import copy
import math

import msgspec
import numpy as np
import pytest
import wire_samples

from sessions.model import Phase, PhaseSpan, Session
from sessions.storage.content import cleaned
from sessions.verdicts.verdict_words import ratio_line
from workbench import protocol
from workbench.client.recorder import Recorder


def recorded(*runners: list[protocol.AnyMessage]) -> Session:
    recorder = Recorder()
    for messages in runners:
        for message in messages:
            recorder.record(message)
    return recorder.session


def times(session: Session) -> np.ndarray:
    return np.concatenate([segment.steps["t_s"] for segment in session.segments])


def test_messages_become_segments_telemetry_and_events():
    session = recorded(wire_samples.stream(segments=2, batches=3))
    assert session.title == "Run 0" and session.notes == "a note"
    assert session.created == 1.7e9 and session.environment == {
        "torch": "0",
        "sampling busy": "every 0.05 s",
        "sampling sm_active": "absent: a CPU has no such counter",
    }
    assert [segment.label for segment in session.segments] == ["option 0", "option 1"]
    for index, segment in enumerate(session.segments):
        assert segment.index == index
        assert len(segment.steps["t_s"]) == 15
        assert np.isnan(segment.steps["gpu_ms"]).all()  # None on the wire
        assert np.isnan(segment.steps["reserved"]).all()  # not sent at all
        assert (segment.steps["phase"][:5] == Phase.WARM_UP).all()
        assert [span.phase for span in segment.phases] == [Phase.BUILD, Phase.WARM_UP]
        assert segment.phases[-1].stop_s >= segment.steps["t_s"][-1]
        assert set(segment.ledger) == {"loss"}
        assert segment.evidence[0].status == "effective"
        load, rank = segment.metrics["load"], segment.metrics["rank"]
        assert (load.title, load.unit, load.row, load.column) == (
            *("Expert load", "tokens", "block", "expert"),
        )
        assert (rank.title, rank.unit, rank.help) == ("rank", "", "")
        assert load.table["values"].shape == (3, 2, 3) and load.shape == (2, 3)
        assert np.isnan(load.table["values"][:, 1, 2]).all()  # None on the wire
        assert np.isfinite(load.table["values"][:, 0]).all()
        assert (rank.table["values"] == index).all()
        assert segment.start_s < load.table["t_s"][0] < load.table["t_s"][-1]
    assert len(session.telemetry["cpu"]["t_s"]) == 6
    assert [event.kind for event in session.events] == ["note", "note", "error"]


@pytest.mark.parametrize(
    "end",
    [
        protocol.Finished(t_s=9.0, reason="done", steps=0),
        protocol.Failure(t_s=9.0, kind="killed", sentence="The runner ended.", fatal=True),
    ],
)
def test_the_last_phase_of_a_run_ends_with_it_and_not_with_the_next_run(end):
    begins = protocol.SegmentStarted
    (started,) = (
        message for message in wire_samples.stream(segments=1) if isinstance(message, begins)
    )
    began = [
        msgspec.structs.replace(started, t_s=t_s, index=index)
        for index, t_s in enumerate((1.0, 300.0))
    ]
    warms_up = protocol.PhaseChanged(t_s=2.0, segment=0, phase=int(Phase.WARM_UP))
    session = recorded([wire_samples.catalogue(), began[0], warms_up, end, began[1]])
    assert session.segments[0].phases == [PhaseSpan(Phase.WARM_UP, 2.0, 9.0)]


@pytest.mark.parametrize("later_s", [100.0, 0.0, -3600.0], ids=["later", "same", "set back"])
def test_a_second_runner_goes_on_in_the_same_session(later_s):
    first = wire_samples.stream(seed=1)
    second = wire_samples.stream(seed=2, created=1.7e9 + later_s)
    session = recorded(first, second)
    assert session.created == 1.7e9
    assert [segment.index for segment in session.segments] == list(range(6))
    assert (np.diff(times(session)) > 0).all(), "time runs backwards"
    measured = np.concatenate([s.metrics["load"].table["t_s"] for s in session.segments])
    assert (np.diff(measured) > 0).all(), "the metrics' time runs backwards"
    starts = [segment.start_s for segment in session.segments]
    assert starts == sorted(starts)
    alone = recorded(second)
    for moved, own in zip(session.segments[3:], alone.segments, strict=True):
        np.testing.assert_array_equal(moved.steps["wall_ms"], own.steps["wall_ms"])
        np.testing.assert_allclose(np.diff(moved.steps["t_s"]), np.diff(own.steps["t_s"]))
    assert session.segments[3].start_s - session.segments[2].start_s >= later_s - 3


def test_a_segment_whose_beginning_was_lost_does_not_take_the_later_ones_with_it():
    messages = wire_samples.stream(segments=3)
    lost = next(
        message
        for message in messages
        if isinstance(message, protocol.SegmentStarted) and message.index == 1
    )
    recorder = Recorder()
    refused = 0
    for message in messages:
        try:
            if message is not lost:
                recorder.record(message)
        except protocol.WireError:
            refused += 1
    complete = recorded(messages)
    assert refused > 0
    assert [segment.label for segment in recorder.session.segments] == ["option 0", "option 2"]
    for segment, wanted in zip(recorder.session.segments, complete.segments[::2], strict=True):
        np.testing.assert_array_equal(segment.steps["wall_ms"], wanted.steps["wall_ms"])


def batch(**columns) -> protocol.Steps:
    return protocol.Steps(segment=0, columns={"t_s": [1.0, 2.0], **columns})


def rows(study: int = 0, table: str = "points", **columns) -> protocol.StudyRows:
    row = {"arm": [0.0], "x": [8.0], "median_ms": [2.0], "outcome": ["measured"], **columns}
    return protocol.StudyRows(study=study, table=table, columns=row)


MISFITS = [
    protocol.Steps(segment=7, columns={"t_s": [1.0]}),
    protocol.Steps(segment=-1, columns={"t_s": [1.0]}),
    protocol.PhaseChanged(segment=7, phase=5),
    protocol.PhaseChanged(segment=-1, phase=5),
    protocol.PhaseChanged(segment=0, phase=8),
    protocol.PhaseChanged(segment=0, phase=-1),
    protocol.Facts(segment=7, ledger={}),
    protocol.EvidenceFound(segment=-2, evidence=[]),
    protocol.Metrics(segment=7, values={"load": [[1.0, 2.0, 3.0]] * 2}),
    protocol.Metrics(segment=0, values={"load": [[1.0, 2.0]] * 2}),
    protocol.Metrics(segment=0, values={"other": [[1.0]], "load": [[1.0]]}),
    protocol.Metrics(segment=0, values={"other": [[1.0, 2.0], [1.0]]}),
    protocol.Metrics(segment=0, values={"other": [[], []]}),
    protocol.Metrics(segment=0, values={"other": []}),
    protocol.Steps(segment=0, columns={}),
    protocol.Steps(segment=0, columns={"wall_ms": [1.0]}),
    batch(wall_ms=[1.0]),
    batch(wall_ms=[]),
    batch(surprise=[1.0, 2.0]),
    batch(phase=[5.0, None]),
    batch(phase=[5.0, 6.0]),
    batch(phase=[5.0, 4.5]),
    batch(phase=[-1.0, 5.0]),
    batch(block=[1.0, 1e300]),
    protocol.TelemetrySamples(device="gpu0", columns={"t_s": [1.0], "busy": [1.0, 2.0]}),
    protocol.TelemetrySamples(device="gpu0", columns={"t_s": [1.0], "surprise": [1.0]}),
    protocol.TelemetrySamples(device="gpu0", columns={"busy": [1.0]}),
    protocol.StudyFacts(study=7, facts={"a": 1}),
    rows(study=7),
    rows(table="no name"),
    rows(x=[]),
    rows(x=[1.0, 2.0]),
    rows(x=["text"]),
    rows(outcome=["measured", 1.0], median_ms=[1.0, 2.0], x=[1.0, 2.0], arm=[0.0, 0.0]),
    rows(surprise=[1.0]),
    # What no session file can hold:
    rows(arm=[1.0]),
    rows(median_ms=[-1.0]),
    rows(x=[1e31]),
    batch(wall_ms=[1.0, -1.0]),
    batch(wall_ms=[1e-10, 1.0]),
    batch(peak=[1.0, 1e20]),
    batch(block=[-1.0, 0.0]),
    batch(t_s=[-3600.0, 1.0]),
    protocol.Note(t_s=1e10, kind="note", text=""),
    protocol.PhaseChanged(t_s=-3600.0, segment=0, phase=5),
    protocol.TelemetrySamples(device="gpu0", columns={"t_s": [1.0], "busy": [-1.0]}),
    protocol.TelemetrySamples(device="g" * 2000, columns={"t_s": [1.0]}),
    protocol.Metrics(segment=0, values={"n" * 2000: [[1.0]]}),
    protocol.Metrics(segment=0, values={"other": [[1.0] * 1000] * 1000}),
    protocol.Facts(segment=0, ledger={"early_loss": 1e35}),
    protocol.Facts(segment=0, ledger={"own_peak_bytes": -1}),
    protocol.Facts(segment=0, ledger={"other": 10**31}),
    protocol.StudyFacts(study=0, facts={"other": 10**31}),
    protocol.StudyStarted(index=1, kind="sweep", title="batch", request={"values": [1, 2]}),
    protocol.EnvironmentFound(facts={"n" * 2000: ""}),
    protocol.TelemetrySamples(device="g" * 256, columns={"t_s": [1.0]}),
    protocol.Metrics(segment=0, values={"n" * 256: [[1.0]]}),
    rows(table="t" * 256),
    protocol.StudyRows(study=0, table="other", columns={"c" * 256: [1.0]}),
    protocol.Facts(segment=0, ledger={"\ud800": 1}),
]


def test_the_rows_of_a_study_are_added_up_or_replaced():
    messages = wire_samples.stream()
    (study,) = recorded(messages).studies
    assert (study.kind, study.title, study.request["values_0"]) == ("sweep", "batch", [1, 2, 4])
    assert study.facts == {"exponent": 0.9}
    points = study.tables["points"]
    np.testing.assert_array_equal(points["x"], [1, 2, 4])
    assert points["outcome"].tolist() == ["measured", "measured", "out of memory"]
    assert np.isnan(points["median_ms"]).tolist() == [False, False, True]  # None on the wire
    other = protocol.StudyRows(
        study=0, table="points", columns={"outcome": ["a"], "blocks": [1.0]}, replace=True
    )
    (study,) = recorded([*messages, other]).studies
    assert {name: values.tolist() for name, values in study.tables["points"].items()} == {
        "outcome": ["a"],
        "blocks": [1.0],
    }


@pytest.mark.parametrize("misfit", MISFITS, ids=repr)
def test_a_message_that_does_not_fit_is_refused_and_changes_nothing(misfit):
    recorder = Recorder()
    for message in wire_samples.stream():
        recorder.record(message)
    before = copy.deepcopy(recorder.session)
    with pytest.raises(protocol.WireError) as refusal:
        recorder.record(misfit)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 300
    wire_samples.assert_same(recorder.session, before)


def test_a_norm_that_overflowed_is_unknown_and_costs_no_session():
    recorder = Recorder()
    for message in wire_samples.stream():
        recorder.record(message)
    for value in (math.inf, 1e39, 1e31, 1e30, -math.inf):
        recorder.record(protocol.Metrics(segment=0, values={"norm": [[value, 1.0]]}))
    values = cleaned(recorder.session).segments[0].metrics["norm"].table["values"]
    assert np.isnan(values[:, 0, 0]).all() and (values[:, 0, 1] == 1).all()


def test_the_newest_text_is_kept_in_the_ledger_and_bounded():
    recorder = Recorder()
    for message in wire_samples.stream(segments=1, batches=1)[:4]:
        recorder.record(message)

    def write(**fields):
        segment = recorder.record(protocol.Generated(segment=0, **fields))
        return segment.ledger["prompt"], segment.ledger["text"]

    assert write(sequence=0, start=0, prompt="a", text="bc") == ("a", "bc")
    assert write(sequence=0, start=2, text="d") == ("a", "bcd")
    assert write(sequence=1, start=0, prompt="x", text="") == ("x", "")
    assert write(sequence=1, start=0, prompt="y" * 9999, text="z") == ("y" * 4000, "z")
    assert write(sequence=1, start=1, text="w" * 3999 + "!") == ("y" * 4000, "w" * 3999 + "!")
    with pytest.raises(protocol.WireError, match="segment 7 was never started"):
        recorder.record(protocol.Generated(segment=7, sequence=0, start=0, text=""))


def test_a_comparison_that_goes_on_keeps_its_ratio_until_the_next_judgement():
    messages = [*wire_samples.stream()]
    (started,) = (m for m in messages if isinstance(m, protocol.ComparisonStarted))
    before = [m.block for m in messages if isinstance(m, protocol.BlockDone)]
    recorder = Recorder()
    for message in messages:
        recorder.record(message)
    (judged,) = recorder.session.comparisons
    assert math.isfinite(judged.ratio) and judged.facts["pairs"] > 0
    recorder.record(msgspec.structs.replace(started, index=1, before=before))
    (continued,) = recorder.session.comparisons
    assert ratio_line(continued) == ratio_line(judged)
    assert "final" not in continued.facts and "numerics" not in continued.facts
