"""A segment's numbers are looked at while it runs, once a configuration; nothing else changes."""

from __future__ import annotations

import os
import time

import msgspec
import pytest
import torch
from recording_wire import RecordingWire
from test_generating import requested
from test_saved_decode import same

from sessions.model import Phase
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments import run, segment_check
from workbench.runner.experiments.run import Run, RunEnded
from workbench.runner.instruments.memory import HostMemory
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison, deviation
from workbench.runner.numerics import reference as plain

CPU = torch.device("cpu")
LOOKS = "Checking results"


class ScriptedWire(RecordingWire):
    """Gives one command of a script each time that a segment's numbers are told."""

    def __init__(self, *script: protocol.Command) -> None:
        super().__init__()
        self.script = list(script)
        self.urgent: list[protocol.Command] = []  # the first comes in the middle of a look

    def send(self, message: protocol.Message) -> None:
        message.t_s = message.t_s or self.seconds(time.perf_counter_ns())
        super().send(message)
        if isinstance(message, protocol.Facts) and "numbers" in message.ledger and self.script:
            self.commands.append(self.script.pop(0))
        if isinstance(message, protocol.State) and message.text == LOOKS and self.urgent:
            self.commands.append(self.urgent.pop(0))

    def sent_of(self, kind):
        return [message for message in self.sent if isinstance(message, kind)]

    def looks(self) -> int:
        return sum(state.text == LOOKS for state in self.sent_of(protocol.State))

    def segments(self):
        recorder = Recorder()
        for message in self.sent:
            recorder.record(message)
        return recorder.session.segments


@pytest.fixture
def at_once(monkeypatch):
    """Let the check look after the first step, or when the first round is over."""
    monkeypatch.setattr(segment_check, "STEADY_STEPS", 0)
    monkeypatch.setattr(segment_check, "SEEN_S", 0.0)
    monkeypatch.setattr(run, "FLUSH_NS", 0)


def ran(configuration, *script, check="steady", urgent=(), **limits):
    """Return the wire and the context of a run to its end."""
    wire = ScriptedWire(*script)
    wire.urgent = list(urgent)
    context = RunnerContext(wire, CPU)
    start = protocol.Start(configuration=configuration, check=check, **limits)
    with pytest.raises(RunEnded):
        Run(context, start).execute()
    return wire, context


def with_(configuration, **changes):
    return msgspec.structs.replace(configuration, **changes)


def test_what_a_look_allocates_is_no_peak_of_the_steps_after_it(small, at_once, monkeypatch):
    happened = []

    def recorded(name, function):
        return lambda *given: (happened.append(name), function(*given))[1]

    monkeypatch.setattr(HostMemory, "new_phase", recorded("new peak", HostMemory.new_phase))
    monkeypatch.setattr(comparison, "check", recorded("look", comparison.check))
    monkeypatch.setattr(RunnerContext, "send_steps", recorded("steps", RunnerContext.send_steps))
    ran(small, steps=4)
    after = happened[happened.index("look") + 1 :]
    assert "new peak" in after[: after.index("steps")]


def test_no_step_is_timed_while_the_numbers_are_looked_at_and_the_segment_warms_up_after(
    small, monkeypatch
):
    looked = []

    def slow(*arguments):
        began = time.perf_counter()
        time.sleep(0.3)
        numerics = check(*arguments)
        looked.append((began, time.perf_counter()))
        return numerics

    check = comparison.check
    monkeypatch.setattr(comparison, "check", slow)
    monkeypatch.setattr(segment_check, "SEEN_S", 0.0)
    wire, _ = ran(small, protocol.Apply(toggles={"rope_cache": "shared"}), protocol.Stop())
    first, second = wire.segments()
    assert first.ledger["numbers_right"] is second.ledger["numbers_right"] is True
    assert first.ledger["numbers"].startswith("against float64: relative error ")
    assert len(looked) == 2
    for segment, (began, ended) in zip((first, second), looked, strict=True):
        steps = segment.steps
        starts = steps["t_s"] - 1.0  # the wire's clock begins at 1 s
        ends = starts + 1e-3 * steps["wall_ms"]
        assert ((ends <= began + 1e-6) | (starts >= ended - 1e-6)).all()
        before = steps["phase"][starts < began]
        assert (before == Phase.STEADY).sum() >= segment_check.STEADY_STEPS
        phases = [(span.phase, span.start_s - 1.0) for span in segment.phases]
        assert Phase.WARM_UP in [phase for phase, at in phases if at >= ended - 1e-6]


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_training_ends_at_the_same_weights_with_a_look_in_the_middle_as_without(
    small, precision, at_once
):
    configuration = with_(small, workload="train", toggles={"precision": precision})
    ends = []
    for check in ("never", "steady"):
        wire, context = ran(configuration, check=check, steps=6)
        assert wire.looks() == (check == "steady")
        arm = context.variants.get(resolve(configuration, CPU), PhaseTracker(lambda phase: None))
        ends.append({name: weight.detach().clone() for name, weight in arm.model.weights().items()})
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("family", ["hydra", "mamba2"])
def test_generation_is_in_the_same_state_with_a_look_between_two_rounds_as_without(
    family, at_once, tmp_path
):
    configuration = requested(family, "generate", {"temperature": 0.9}, seed=5)
    for check in ("never", "steady"):
        # A round has four steps: the run ends in the third.
        wire, _ = ran(configuration, check=check, steps=11, save_state=str(tmp_path / check))
        assert wire.looks() == (check == "steady")
    assert same(tmp_path / "never", tmp_path / "steady")


def test_a_state_that_cannot_be_written_is_told_and_the_run_is_done(tmp_path):
    (tmp_path / f"state.part{os.getpid()}").symlink_to("/dev/full")
    wire, _ = ran(requested("hydra", "generate", {}), steps=5, save_state=str(tmp_path / "state"))
    (failure,) = wire.sent_of(protocol.Failure)
    assert failure.kind == "unwritten" and f"{tmp_path}/state on " in failure.sentence
    assert "No space left on device" in failure.sentence and not list(tmp_path.iterdir())


def test_going_back_to_a_configuration_tells_its_numbers_at_once_and_does_not_look_again(
    small, at_once
):
    shared, alone = ({"rope_cache": option} for option in ("shared", "per_layer"))
    wire, _ = ran(
        small,
        *(protocol.Apply(toggles=toggles) for toggles in (shared, alone, shared)),
        protocol.Stop(),
    )
    segments = wire.segments()
    assert [segment.ledger["numbers_right"] for segment in segments] == [True] * 4
    assert segments[0].ledger["numbers"] == segments[2].ledger["numbers"]
    assert segments[1].ledger["numbers"] == segments[3].ledger["numbers"]
    assert wire.looks() == 2


def test_what_a_look_found_is_forgotten_with_the_weights(small, at_once):
    _, context = ran(small, protocol.Stop())
    situation = resolve(small, CPU)
    assert context.variants.numbers_of(situation).ok
    other = resolve(with_(small, seed=7), CPU)
    assert context.variants.numbers_of(other) is None
    context.variants.keep_only(other)
    assert context.variants.numbers_of(situation) is None


def test_a_command_comes_before_the_look_which_is_taken_again(small, at_once):
    train = with_(small, workload="train")
    urgent = [protocol.Apply(toggles={})]
    wire, _ = ran(train, protocol.Stop(), urgent=urgent)
    (segment,) = wire.segments()
    assert segment.ledger["numbers_right"] is True and wire.looks() == 2
    assert (
        len([message for message in wire.sent_of(protocol.Facts) if "numbers" in message.ledger])
        == 1
    )


@pytest.mark.parametrize("part", [0, 1, 3, 14, 25])
def test_a_check_that_is_put_off_leaves_weights_moments_and_batches_as_they_were(small, part):
    configuration = with_(small, workload="train")
    _, context = ran(configuration, check="never", steps=3)
    situation = resolve(configuration, CPU)
    arm = context.variants.get(situation, PhaseTracker(lambda phase: None))

    def state():
        tensors = [*arm.model.weights().values(), *arm.batches.inputs, *arm.batches.targets]
        for moments in arm.trainer.optimizer.state.values():
            tensors += moments.values()
        return [tensor.detach().clone() for tensor in tensors], arm.batches.advances

    def between():
        calls.append(None)
        if len(calls) > part:
            raise comparison.PutOff

    before, advances = state()
    calls: list[None] = []
    with pytest.raises(comparison.PutOff):
        comparison.check(arm, situation, between)
    after, now = state()
    assert now == advances and all(map(torch.equal, before, after))


def test_wrong_numbers_are_told_as_such_and_marked_on_the_timeline(small, at_once, monkeypatch):
    distance = deviation.distance
    monkeypatch.setattr(
        deviation, "distance", lambda values, reference: distance(values * 1.01, reference)
    )
    monkeypatch.setattr(deviation, "SLACK", 0.5)  # of what is as far off itself
    wire, _ = ran(small, protocol.Stop())
    (segment,) = wire.segments()
    assert segment.ledger["numbers_right"] is False
    (note,) = [note for note in wire.sent_of(protocol.Note) if "numbers" in note.text]
    assert note.kind == "warning" and note.text.startswith("the numbers are WRONG (checked in ")


def test_what_cannot_be_checked_is_unknown_with_its_reason(small, at_once, monkeypatch):
    def lacks(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(plain.Plain, "reference", lacks)
    wire, _ = ran(small, protocol.Stop())
    (segment,) = wire.segments()
    assert "numbers_right" not in segment.ledger
    assert segment.ledger["numbers"].startswith("not checked: Out of memory")


def test_a_segment_that_ends_before_its_look_says_so(small):
    wire, _ = ran(small, steps=2)
    (segment,) = wire.segments()
    assert "numbers_right" not in segment.ledger and wire.looks() == 0
    assert segment.ledger["numbers"] == segment_check.EARLY


def test_a_run_that_is_not_asked_to_look_tells_nothing(small, at_once):
    wire, _ = ran(small, check="never", steps=4)
    (segment,) = wire.segments()
    assert not {"numbers", "numbers_right"} & segment.ledger.keys() and wire.looks() == 0
