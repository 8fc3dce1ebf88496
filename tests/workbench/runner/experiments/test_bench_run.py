"""Timing kernels through the real runner: every contender is a segment of the session."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hang_limit import HANG_S
from recording_wire import RecordingWire

import kernels
from kernels.measure import bench, rounds
from kernels.measure.rounds import ROUNDS
from sessions.studies.kernels import speedup
from sessions.verdicts import statistics
from workbench import protocol
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.bench import BenchRun


def test_every_contender_and_direction_of_an_operator_is_a_segment(runner):
    before = len(runner.session.segments)
    runner.send(protocol.Bench(operators=["swiglu"], cases=["2048x2048"], dtype="float32"))
    finished = runner.finish()
    segments = runner.session.segments[before:]
    assert finished.reason == "done", runner.describe()
    contenders = {
        (s.configuration.toggles["implementation"], s.configuration.workload) for s in segments
    }
    assert contenders >= {
        ("torch", "forward"),
        ("torch", "backward"),
        ("torch.compile", "forward"),
        ("torch.compile", "backward"),
    }
    for segment in segments:
        configuration = segment.configuration
        assert (configuration.family, configuration.preset) == ("kernels", "swiglu")
        assert configuration.settings["dtype"] == "float32"
        rounds = segment.steps["block"][statistics.steady(segment)]
        assert set(rounds) == set(range(1, ROUNDS + 1))
        assert (np.diff(segment.steps["t_s"]) >= 0).all()
        assert 0 <= segment.ledger["error"] <= 1 and segment.ledger["bytes"] > 0
        limits = [segment.ledger[name] for name in ("bytes_per_s", "flops_per_s")]
        needed_s = [segment.ledger[name] for name in ("bytes", "flops")]
        floor_s = max(need / limit for need, limit in zip(needed_s, limits, strict=True))
        assert segment.ledger["floor_us"] == pytest.approx(1e6 * floor_s)
        if configuration.toggles["implementation"] == "torch":
            assert segment.ledger["host_outside_us"] > 0 and segment.ledger["host_us"] > 0
            recorded = "host_us_recorded" in segment.ledger
            assert recorded == (configuration.workload == "forward")
    assert finished.steps == sum(len(segment.steps["t_s"]) for segment in segments)
    forward = {
        s.configuration.toggles["implementation"]: s
        for s in segments
        if s.configuration.workload == "forward"
    }
    ratio = speedup(forward["torch"], forward["torch.compile"])
    assert ratio.n == ROUNDS and ratio.low < ratio.mean < ratio.high
    progress = [m for m in runner.messages if isinstance(m, protocol.Progress)]
    assert progress[-1].fraction == 1.0


def test_an_unknown_operator_or_dtype_is_a_mistake_that_names_what_there_is(runner):
    for command, sentence in (
        (protocol.Bench(operators=["softmin"]), "unknown operator 'softmin'; expected one of "),
        (protocol.Bench(budget_s=0.0), "budget_s = 0: expected more than 0 and at most 1e+09"),
        (protocol.Bench(dtype="float7"), "unknown dtype 'float7'; expected one of bfloat16, "),
    ):
        since = len(runner.messages)
        runner.send(command)
        assert runner.finish().reason == "failed"
        (failure,) = (m for m in runner.messages[since:] if isinstance(m, protocol.Failure))
        assert failure.kind == "mistake" and failure.sentence.startswith(sentence)


def test_a_bench_ends_between_two_rows_when_it_is_cancelled(runner):
    # Without what is compiled, which nothing can interrupt.
    runner.send(protocol.Bench(dtype="float32", implementations=["torch"]))
    runner.until(protocol.SegmentStarted)
    runner.runner.cancel(HANG_S)
    assert runner.finish().reason == "cancelled"


def test_only_the_cases_implementations_and_directions_that_are_asked_for_are_timed(runner):
    case = kernels.OPS["swiglu"].cases[1].name
    before = len(runner.session.segments)
    runner.send(
        protocol.Bench(
            operators=["swiglu"],
            dtype="float32",
            cases=[case],
            implementations=["torch"],
            forward_only=True,
        )
    )
    assert runner.finish().reason == "done", runner.describe()
    (segment,) = runner.session.segments[before:]
    assert segment.configuration.settings["case"] == case
    assert segment.configuration.toggles == {"implementation": "torch"}
    assert segment.configuration.workload == "forward"
    assert len(statistics.steady_ms(segment)) >= ROUNDS


def test_a_case_that_an_operator_does_not_have_is_a_mistake(runner):
    since = len(runner.messages)
    runner.send(protocol.Bench(operators=["swiglu"], cases=["7x7"]))
    assert runner.finish().reason == "failed"
    (failure,) = (m for m in runner.messages[since:] if isinstance(m, protocol.Failure))
    assert failure.kind == "mistake"
    assert failure.sentence.startswith("cases: swiglu has none of ['7x7']; expected some of ")


def test_a_budget_is_shared_by_the_cases_and_their_directions(monkeypatch):
    """Check what each direction gets; tests of the rounds check that they end after it."""
    budgets_s = []

    def alternate(*contenders, budget_s, **options):
        budgets_s.append(budget_s)
        return rounds.alternate(*contenders, budget_s=1e-3, **options)

    monkeypatch.setattr(bench, "alternate", alternate)
    context = RunnerContext(RecordingWire(), torch.device("cpu"))
    command = protocol.Bench(
        operators=["swiglu"],
        dtype="float32",
        cases=[case.name for case in kernels.OPS["swiglu"].cases[:2]],
        implementations=["torch"],
        budget_s=2.0,
    )
    BenchRun(context, command).execute()
    assert budgets_s == [0.5] * 4
    begun = [m for m in context.wire.sent if isinstance(m, protocol.SegmentStarted)]
    assert len(begun) == 4
