"""Choices, budgets, alarms and steps that a pause, a cancelled run and a failed one leave alone."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from recording_wire import RecordingWire

from sessions.model import Configuration
from workbench import protocol
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired import interleaving
from workbench.runner.experiments.paired.interleaving import Alternation
from workbench.runner.experiments.run import Run, RunEnded
from workbench.runner.failures import Cancelled
from workbench.runner.numerics import comparison

SHARED = protocol.Apply(toggles={"rope_cache": "shared"})
OWN = protocol.Apply(toggles={"rope_cache": "per_layer"})


class QueuedWire(RecordingWire):
    """Whoever waits gets what waits; ``asked`` is whether the watchdog was on at each wait."""

    def __init__(self, *commands: protocol.Command, waits_s: float = 0.0) -> None:
        super().__init__()
        self.commands = list(commands)
        self.context = RunnerContext(self, torch.device("cpu"))
        self.watched_when_asked: list[bool] = []
        self._waits_s = waits_s

    def next(self) -> protocol.Command:
        self.watched_when_asked.append(self.context.watchdog.active)
        time.sleep(self._waits_s)
        return self.commands.pop(0)

    def of(self, kind):
        return [message for message in self.sent if isinstance(message, kind)]


def ended(wire: QueuedWire, configuration: Configuration, **options) -> Run:
    run = Run(wire.context, protocol.Start(configuration=configuration, **options))
    with pytest.raises((RunEnded, Cancelled)):
        run.execute()
    return run


# Pauses


def test_what_is_chosen_in_a_pause_comes_after_what_was_chosen_before_it(small):
    wire = QueuedWire(SHARED, protocol.Pause(), OWN, protocol.Resume())
    ended(wire, small, steps=4)
    chosen = [m.configuration.toggles["rope_cache"] for m in wire.of(protocol.SegmentStarted)]
    assert chosen == ["per_layer", "shared", "per_layer"]


def test_nothing_hangs_in_a_pause_whatever_is_switched_in_it(small):
    wire = QueuedWire(protocol.Pause(), SHARED, protocol.Resume())
    ended(wire, small, steps=4)
    assert wire.watched_when_asked == [False, False]
    assert [m.state for m in wire.of(protocol.State)][-3:] == ["running", "paused", "running"]


@pytest.mark.parametrize("watched", [True, False])
def test_a_paused_comparison_goes_on_when_it_is_told_to_and_not_before(small, watched):
    prediction = protocol.Predict(base=small, other=small)
    wire = QueuedWire(protocol.Pause(), SHARED, prediction, protocol.Pause(), protocol.Resume())
    wire.context.watchdog.active = watched
    Alternation(wire.context, 1.0, 1, "busy").handle_commands()
    assert not wire.commands and wire.watched_when_asked == [False] * 4
    assert wire.context.watchdog.active is watched
    assert [m.state for m in wire.of(protocol.State)] == ["paused", "running"]
    assert [m.sentence for m in wire.of(protocol.Failure)] == ["busy"]


def test_a_pause_takes_nothing_of_a_comparison_s_budget(small, monkeypatch):
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    wire = QueuedWire(waits_s=1.0)
    send = wire.send

    def pausing(message: protocol.Message) -> None:
        send(message)
        if isinstance(message, protocol.BlockDone) and not wire.watched_when_asked:
            wire.commands = [protocol.Pause(), protocol.Resume()]

    monkeypatch.setattr(wire, "send", pausing)
    began = time.perf_counter()
    run = CompareRun(wire.context, protocol.Compare(base=small, other=small, budget_s=0.9))
    run.execute()
    assert wire.watched_when_asked == [False]
    assert 0.9 <= run.seconds < time.perf_counter() - began - 1.0
    assert len(wire.of(protocol.BlockDone)) > 2


def test_a_check_among_alternating_arms_is_no_hang(small, monkeypatch):
    seen = []
    check = comparison.check

    def watching(*given):
        seen.append(wire.context.watchdog.active)
        return check(*given)

    wire = QueuedWire()
    monkeypatch.setattr(comparison, "check", watching)
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    CompareRun(wire.context, protocol.Compare(base=small, other=small, budget_s=0.1)).execute()
    assert seen == [False, False]


# Cancelled


def test_whoever_cancels_between_two_steps_waits_for_no_check(small, monkeypatch):
    monkeypatch.setattr(comparison, "check", lambda *_: pytest.fail("checked all the same"))
    wire = QueuedWire(protocol.Cancel())
    run = ended(wire, small, steps=100, check="last")
    assert run.steps == 1, "the one of its build"


def test_a_build_that_is_cancelled_is_no_failure_of_what_was_switched(small, monkeypatch):
    wire = QueuedWire(SHARED)
    build, builds = wire.context.variants._build, itertools.count()

    def cancelled(*given):
        arm = build(*given)
        if next(builds):
            wire.cancelled.set()
        return arm

    monkeypatch.setattr(wire.context.variants, "_build", cancelled)
    ended(wire, small, steps=100)
    assert next(builds) == 2
    assert not any("failure" in facts.ledger for facts in wire.of(protocol.Facts))
    evidence = [item for m in wire.of(protocol.EvidenceFound) for item in m.evidence]
    assert all(item.status != "failed" for item in evidence)


# Failed


def rows(wire: QueuedWire, segment: int) -> int:
    steps = (m for m in wire.of(protocol.Steps) if m.segment == segment)
    return sum(len(m.columns["t_s"]) for m in steps)


def test_the_steps_before_a_failure_are_told_with_its_run_and_with_no_other(small):
    wire = QueuedWire()
    situation = resolve(small, wire.context.device)
    arm = wire.context.variants.get(situation, wire.context.phases)
    step, calls = arm.step, itertools.count(1)

    def failing() -> torch.Tensor:
        if next(calls) == 6:
            raise RuntimeError("a fault of the model")
        return step()

    arm.step = failing
    run = Run(wire.context, protocol.Start(configuration=small, steps=100))
    with pytest.raises(RuntimeError, match="a fault"):
        run.execute()
    assert rows(wire, 0) == run.steps == 5
    wire.context.clock.lap(0)  # as of a block that failed
    wire.context.variants.forget_all()
    assert rows(wire, 1) == 0
    ended(wire, small, steps=3)
    assert rows(wire, 1) == 3


def test_arms_that_make_room_leave_no_gradients_half_made(small):
    context = QueuedWire().context
    arm = context.variants.get(resolve(small, context.device), context.phases)
    parameters = list(arm.weights.parameters.values())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    del arm
    context.variants.forget_variants()
    assert all(parameter.grad is None for parameter in parameters)
