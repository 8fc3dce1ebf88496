"""Scaling by the real runner and processes: verdicts, checked numbers, lanes; refusals."""

from __future__ import annotations

import math
import os

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_checks import needs_cores
from recording_wire import RecordingWire

from sessions.model import Judgement
from sessions.storage.study_schema import columns_of
from sessions.studies.rank_scaling import KIND, POINTS, RANKS, curves, points, ranks_of
from workbench import protocol
from workbench.runner.context import RunnerContext
from workbench.runner.distributed import world
from workbench.runner.experiments.rank_kinds import RanksError, kinds, require_kind, toggles_of
from workbench.runner.experiments.scale import Point, ScaleRun
from workbench.runner.failures import Mistake

HERE = list(kinds())


@pytest.fixture
def context():
    return RunnerContext(RecordingWire(), torch.device("cpu"))


@pytest.fixture
def base(small):
    model = {**small.model, "n_kv_heads": 2}
    settings = {"batch": 4, "sequence": 16}
    return msgspec.structs.replace(small, model=model, settings=settings, workload="train")


def scale(runner, base, **options):
    """Return the study of a run that came to its end."""
    runner.send(protocol.Scale(base=base, **{"kinds": ["data"], "budget_s": 0.3, **options}))
    assert runner.finish().reason == "done", runner.describe()
    return runner.session.studies[-1]


@needs_cores
def test_two_ranks_have_a_verdict_against_one_device_and_lanes(runner, base):
    before = len(runner.session.comparisons)
    study = scale(runner, base, ranks=[1, 2, 512], kinds=["data"])
    assert study.kind == KIND
    for table in (POINTS, RANKS):
        assert set(study.tables[table]) == set(columns_of(KIND, table)), table
    (row,) = curves(study)["data"]
    comparison = runner.session.comparisons[-1]
    assert len(runner.session.comparisons) == before + 1
    assert row["ratio"] == pytest.approx(comparison.ratio)
    assert row["efficiency"] == pytest.approx(1 / (2 * row["ratio"]))
    if math.isfinite(comparison.low):  # a busy machine may end with too few pairs for an interval
        assert row["low"] <= row["efficiency"] <= row["high"]
    else:
        assert math.isnan(row["low"]) and row["verdict"] == "UNDECIDED"
    assert row["wrong"] == 0 and row["verdict"] == comparison.verdict
    alone, refused = (next(p for p in points(study) if p["count"] == n) for n in (1, 512))
    assert alone["step_ms"] > 0 and alone["wrong"] == 0
    assert refused["outcome"] == "refused" and "512 ranks" in refused["reason"]
    ranks = ranks_of(study, row)
    assert [row["rank"] for row in ranks] == [0, 1] and all(row["host"] for row in ranks)
    for rank in ranks:
        assert (
            rank["computing_ms"] > 0 and rank["communication_ms"] > 0 and rank["peak_bytes"] > 1e6
        )
        parts = rank["computing_ms"] + rank["waiting_ms"] + rank["idle_ms"]
        assert parts == pytest.approx(rank["step_ms"], rel=0.01)
    assert row["exposed_ms"] >= 0 and row["skew_ms"] >= 0
    assert "come from 3 profiled steps" in study.facts["communication"]


def test_verdicts_of_many_points_are_corrected_for_their_number(context, base):
    run = ScaleRun(context, protocol.Scale(base=base, kinds=["data"], ranks=[2]))
    for count in range(2, 12):
        judgement = Judgement(
            verdict="FASTER", pairs=20, ratio=0.9, low=0.85, high=0.95, p=0.02, reasons=[]
        )
        row = {"kind": "data", "count": count, "verdict": "", "reason": "", "outcome": "measured"}
        run._points.append(Point("data", count, judgement=judgement, row=row))
    run._send_all()
    columns = context.wire.sent[-1].columns
    assert set(columns["verdict"]) == {"UNDECIDED"} and "Holm" in columns["reason"][0]
    run._points[1:] = []
    run._send_all()
    assert context.wire.sent[-1].columns["verdict"] == ["FASTER"]


@needs_cores
@pytest.mark.slow
def test_weak_scaling_gives_every_rank_a_batch_of_its_own(runner, base):
    kinds = ["data", "fsdp", "sequence", "pipeline"]
    study = scale(runner, base, ranks=[2], kinds=kinds, mode="weak", lanes=False)
    assert set(curves(study)) == set(kinds)
    for (row,) in curves(study).values():
        assert row["efficiency"] == pytest.approx(1 / row["ratio"]) and row["wrong"] == 0
        assert math.isnan(row["exposed_ms"])
    batches = {segment.configuration.settings["batch"] for segment in runner.session.segments[-8:]}
    assert batches == {4, 8}
    assert "not measured" in study.facts["communication"]


@needs_cores
@pytest.mark.slow
def test_four_ranks_of_every_kind_are_right(monkeypatch, base, context):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    kinds = ["data", "fsdp", "hybrid", "data+tensor", "data+pipeline", "fsdp+sequence"]
    ScaleRun(context, protocol.Scale(base=base, ranks=[2, 4], kinds=kinds, budget_s=0.3)).execute()
    world.close()
    sent = [m for m in context.wire.sent if isinstance(m, protocol.StudyRows) and m.table == POINTS]
    rows = list(
        zip(*(sent[-1].columns[n] for n in ("kind", "count", "outcome", "wrong")), strict=True)
    )
    assert [row for row in rows if row[1] == 4] == [(kind, 4, "measured", 0.0) for kind in kinds]


@given(st.lists(st.sampled_from(HERE), min_size=1, max_size=3), st.sampled_from([2, 4, 8, 16, 64]))
def test_a_kind_takes_all_ranks_or_says_why_not(parts, ranks):
    kind = "+".join(parts)
    takers = [kinds()[part].toggle for part in parts]
    if len(set(takers)) < len(takers):
        with pytest.raises(Mistake):
            require_kind(kind)
        return
    require_kind(kind)
    try:
        toggles = toggles_of(kind, ranks)
    except RanksError as error:
        assert "ranks" in str(error)
        return
    assert math.prod(int(toggles[toggle]) for toggle in takers) == ranks


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ranks": [1]}, "name at least one from 2 to 1024"),
        ({"ranks": [2], "kinds": ["magic"]}, "kind: unknown 'magic'"),
        ({"ranks": [2], "kinds": ["data", "data"]}, "each once"),
        ({"ranks": [2], "kinds": ["data+fsdp"]}, "use the same ranks"),
        ({"ranks": [512]}, "512 ranks"),
        ({"ranks": [2], "budget_s": 0.0}, "budget_s = 0: expected more than 0 and at most"),
    ],
)
def test_what_cannot_be_measured_at_all_is_refused(runner, base, options, sentence):
    runner.send(protocol.Scale(base=base, **{"kinds": ["data"], **options}))
    failure = runner.until(protocol.Failure)
    assert failure.kind == "mistake" and sentence in failure.sentence
    assert runner.finish().reason == "failed"
