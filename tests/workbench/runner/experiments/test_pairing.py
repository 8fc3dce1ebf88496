"""Background pairing with the real runner: a run that returns to its baseline after a toggle."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from recording_wire import RecordingWire

from sessions.model import Phase
from sessions.verdicts.background import baselines, is_background, newest_requested
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import pairing
from workbench.runner.experiments.run import Run, RunEnded

MANUAL = {"attention": "manual"}


def steady(runner):
    """Wait until the segment that begins next is steady."""
    index = runner.until(protocol.SegmentStarted).index
    runner.until(
        lambda message: (
            isinstance(message, protocol.Steps)
            and message.segment == index
            and message.columns["phase"][-1] == Phase.STEADY
        )
    )


def start(runner, configuration, share=0.5):
    runner.send(protocol.Start(configuration=configuration, pairing_share=share))
    steady(runner)


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_after_a_toggle_blocks_of_the_baseline_make_a_paired_comparison(runner, small, workload):
    first = len(runner.session.segments)
    start(runner, msgspec.structs.replace(small, workload=workload))
    before = len(runner.session.comparisons)
    runner.send(protocol.Apply(toggles=MANUAL))
    runner.until(protocol.Judged)
    finished = runner.finish(protocol.Stop())
    (comparison,) = runner.session.comparisons[before:]
    base, other = runner.session.segments[first:]
    assert finished.reason == "stopped"
    assert is_background(comparison) and comparison.facts["segments"] == [base.index, other.index]
    assert comparison.facts["share"] == 0.5 and comparison.facts["final"]
    assert comparison.facts["pairs"] >= 1 and comparison.facts["builds"] == 1
    assert newest_requested(runner.session.comparisons[before:]) is None
    assert baselines(runner.session) >= {base.index}
    earlier = min(n[n > 0].min() for n in (base.steps["block"], other.steps["block"])) - 1
    for segment, arm in ((base, 0), (other, 1)):
        numbers = segment.steps["block"] - earlier
        inside = sorted(set(numbers[numbers > 0]))
        assert inside == [at + 1 for at, of in enumerate(comparison.order) if of == arm]
        for number in inside:
            times = segment.steps["wall_ms"][numbers == number]
            assert np.median(times) == pytest.approx(comparison.medians_ms[number - 1], rel=1e-4)
    late = base.steps["t_s"] >= other.start_s
    blocks, phases = base.steps["block"][late], base.steps["phase"][late]
    assert ((blocks > 0) | (phases == Phase.WARM_UP)).all(), "of the baseline, blocks alone"
    assert late.sum() and (other.steps["block"] == 0).any()
    assert max(span.stop_s for span in base.phases) <= other.start_s + 1e-6


def test_without_a_share_and_for_other_models_nothing_is_paired(runner, small):
    count = len(runner.session.comparisons)
    start(runner, small, share=0.0)
    runner.send(protocol.Apply(toggles=MANUAL))
    steady(runner)
    runner.until_steps(20)
    runner.finish(protocol.Stop())
    start(runner, small)
    runner.send(protocol.Apply(toggles={"mixture_of_depths": "on"}))
    steady(runner)
    runner.until_steps(30)
    runner.finish(protocol.Stop())
    assert len(runner.session.comparisons) == count


def test_each_toggle_begins_another_comparison_and_a_pause_ends_it(runner, small):
    first, count = len(runner.session.segments), len(runner.session.comparisons)
    start(runner, small)
    runner.send(protocol.Apply(toggles=MANUAL))
    runner.until(protocol.Judged)
    runner.send(protocol.Apply(toggles={"attention": "auto"}))  # the baseline itself
    steady(runner)
    runner.send(protocol.Apply(toggles={"attention": "chunked"}))
    runner.until(protocol.BlockDone)
    runner.send(protocol.Pause())
    runner.until(lambda m: isinstance(m, protocol.Judged) and m.final)
    runner.until_state("paused")
    runner.send(protocol.Resume())
    runner.until_steps(20)
    runner.finish(protocol.Stop())
    made = runner.session.comparisons[count:]
    assert [comparison.facts["segments"] for comparison in made] == [
        [first, first + 1],
        [first, first + 3],
    ]
    assert all(comparison.facts["final"] for comparison in made)


def test_a_person_may_choose_another_baseline(runner, small):
    first, count = len(runner.session.segments), len(runner.session.comparisons)
    start(runner, small, share=0.0001)  # so that the first pair is the only one
    runner.send(protocol.Apply(toggles=MANUAL))
    steady(runner)
    chosen = runner.session.segments[-1].configuration
    runner.send(protocol.Baseline(configuration=chosen))
    runner.send(protocol.Apply(toggles={"attention": "chunked"}))
    runner.until(protocol.Judged)
    runner.finish(protocol.Stop())
    assert runner.session.comparisons[-1].facts["segments"] == [first + 1, first + 2]
    assert len(runner.session.comparisons) - count <= 2


def test_an_absurd_share_is_refused_in_one_sentence(runner, small):
    runner.send(protocol.Start(configuration=small, pairing_share=0.9))
    failure = runner.until(protocol.Failure)
    assert failure.sentence == "pairing_share = 0.9 is outside of 0 to 0.5"
    runner.finish()


# In this process, with a wire that only records


def paired(small, monkeypatch, disturb=lambda base: None):
    """Run with a toggle until so much was judged; what was sent."""
    monkeypatch.setattr(pairing, "FIRST_S", 0.05)
    context = RunnerContext(RecordingWire(), torch.device("cpu"))
    wire, send = context.wire, context.wire.send
    seen = {"steady": 0, "toggled": False, "ended": 0, "after": 0}

    def hear(message):
        send(message)
        if isinstance(message, protocol.Steps) and message.columns["phase"][-1] == Phase.STEADY:
            seen["steady"] += 1
        if seen["steady"] == 3 and not seen["toggled"]:
            seen["toggled"] = True
            disturb(context.variants.get(resolve(small, context.device), context.phases))
            wire.commands.append(protocol.Apply(toggles=MANUAL))
        judged = isinstance(message, protocol.Judged) and not message.final
        seen["ended"] += isinstance(message, protocol.Note) and "pairing" in message.text
        seen["after"] += isinstance(message, protocol.Steps) and seen["ended"] > 0
        if (judged or seen["after"] >= 3) and not wire.commands:
            wire.commands.append(protocol.Stop())

    wire.send = hear
    run = Run(context, protocol.Start(configuration=small, seconds=60.0, pairing_share=0.5))
    with pytest.raises(RunEnded):
        run.execute()
    return context, wire.sent


def test_memory_that_runs_out_in_the_background_ends_the_pairing_and_the_run_goes_on(
    small, monkeypatch
):
    def short(arm):
        def step():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        arm.step = step

    _, sent = paired(small, monkeypatch, short)
    (text,) = [m.text for m in sent if isinstance(m, protocol.Note) and "pairing" in m.text]
    assert text.startswith("background pairing ended: ") and "memory" in text
    assert not any(isinstance(m, protocol.Failure) for m in sent)
    at = next(index for index, m in enumerate(sent) if isinstance(m, protocol.Note)
              and "pairing" in m.text)  # fmt: skip
    assert any(isinstance(m, protocol.Steps) for m in sent[at:])
    session = Recorder()
    for message in sent:
        session.record(message)
    assert all(comparison.facts["final"] for comparison in session.session.comparisons)


def test_what_is_paired_trains_on_with_the_same_weights_and_moments(small, monkeypatch):
    train = msgspec.structs.replace(small, workload="train")
    context, sent = paired(train, monkeypatch)
    assert sum(isinstance(m, protocol.BlockDone) for m in sent) >= 2
    arms = list(context.variants._variants.values())
    assert len(arms) == 2
    for first, second in zip(*(arm.model.parameters() for arm in arms), strict=True):
        assert first.data_ptr() == second.data_ptr() and torch.isfinite(first).all()


def test_the_baseline_of_an_earlier_run_is_that_of_the_next_unless_it_does_other_work(
    runner, small
):
    first = len(runner.session.segments)
    start(runner, small)
    runner.finish(protocol.Stop())
    baseline = runner.session.segments[first].configuration
    manual = msgspec.structs.replace(baseline, toggles={**baseline.toggles, **MANUAL})
    runner.send(protocol.Start(configuration=manual, pairing_share=0.5, baseline=baseline))
    runner.until(protocol.Judged)
    runner.finish(protocol.Stop())
    assert runner.session.comparisons[-1].facts["segments"] == [first, first + 1]
    count = len(runner.session.comparisons)
    longer = msgspec.structs.replace(manual, settings={"batch": 1, "sequence": 32})
    runner.send(protocol.Start(configuration=longer, pairing_share=0.5, baseline=baseline))
    steady(runner)
    runner.until_steps(30)
    runner.finish(protocol.Stop())
    assert len(runner.session.comparisons) == count
