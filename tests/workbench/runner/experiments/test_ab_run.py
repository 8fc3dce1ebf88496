"""Two configurations compared by the real runner: what is measured, told, kept and repeated."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import signal
import sys
import types
import weakref
from collections.abc import Container

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording_wire import RecordingWire
from runner_driver import Driver

from models.execution.cuda_graph import CaptureError
from sessions.model import Configuration, Numerics, Phase
from sessions.verdicts import verdict, work
from sessions.verdicts.verdict_words import remarks
from workbench import protocol
from workbench.client import journal
from workbench.client.journal import Journal
from workbench.client.recorder import Recorder
from workbench.runner.building.labels import title
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired import blocks, interleaving
from workbench.runner.experiments.run import RunEnded
from workbench.runner.failures import Cancelled
from workbench.runner.instruments import timing
from workbench.runner.instruments.timing import make_clock


def with_(configuration, **changes):
    return msgspec.structs.replace(configuration, **changes)


def compare(runner, base, other, **options):
    """Compare to the end; what the session keeps of it."""
    runner.send(protocol.Compare(base=base, other=other, **{"budget_s": 2.0, **options}))
    finished = runner.finish()
    assert finished.reason == "done", runner.describe()
    return runner.session.comparisons[-1]


def compare_pairs(runner, base, other, pairs, **options):
    """Compare until so many pairs were measured, however long a busy machine takes for them."""
    runner.send(protocol.Compare(base=base, other=other, **{"budget_s": 500, **options}))
    blocks = itertools.count(1)
    last = runner.until(
        lambda message: (
            isinstance(message, protocol.Finished)
            or (isinstance(message, protocol.BlockDone) and next(blocks) == 2 * pairs)
        )
    )
    if isinstance(last, protocol.Finished):  # the verdict is certain
        runner.until_state("idle")
    else:
        runner.finish(protocol.Stop())
    return runner.session.comparisons[-1]


def test_arms_are_called_by_all_that_tells_them_apart(small):
    cpu = torch.device("cpu")
    small = resolve(small, cpu).configuration
    double = with_(small, settings={**small.settings, "batch": 2 * small.settings["batch"]})
    other = with_(small, family="moe")
    fused = with_(double, toggles={**small.toggles, "adamw": "fused"})
    assert title(small, small, cpu) == title(other, other, cpu) == "defaults"
    assert title(small, double, cpu) == f"batch {small.settings['batch']}: defaults"
    assert title(fused, small, cpu) == f"batch {double.settings['batch']}: AdamW: Fused"
    assert title(fused, double, cpu) == "AdamW: Fused"
    assert title(other, small, cpu) == f"moe {small.preset}: defaults"


def test_identical_arms_are_not_told_apart_and_all_is_kept(runner, small):
    count = len(runner.session.segments)
    comparison = compare_pairs(runner, small, small, 12, floor_note="its origin", build_count=1)
    assert comparison.verdict in ("SAME", "UNDECIDED")
    assert comparison.facts["floor_note"] == "its origin"
    assert comparison.facts["pairs"] >= 2 and comparison.facts["identical"]
    assert comparison.low < comparison.ratio < comparison.high
    assert comparison.facts["final"]
    first, second = runner.session.segments[count:]
    assert comparison.facts["segments"] == [first.index, second.index]
    assert (first.label[:2], second.label[:2]) == ("A:", "B:")
    for arm, segment in enumerate((first, second)):
        blocks = segment.steps["block"]
        own = [number + 1 for number, of in enumerate(comparison.order) if of == arm]
        assert sorted(set(blocks[blocks > 0])) == own
        for number in own:
            inside = segment.steps["wall_ms"][blocks == number]
            assert len(inside) >= 20 or inside.sum() >= 45
            assert np.median(inside) == pytest.approx(comparison.medians_ms[number - 1], rel=1e-4)
            assert np.mean(inside) == pytest.approx(comparison.means_ms[number - 1], rel=1e-4)
        timed = segment.steps["phase"][blocks > 0]
        assert (timed == Phase.STEADY).all()
        assert (segment.steps["phase"][blocks == 0] != Phase.STEADY).all()
        assert comparison.facts["numerics"][str(arm)]["ok"]
    pairs = np.array(comparison.pairs).reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all() and (np.diff(pairs[:, 0]) == 1).all()
    assert (np.array(comparison.order).reshape(-1, 2).sum(axis=1) == 1).all()


def test_a_truly_slower_arm_is_called_slower_and_the_faster_one_faster(runner, small):
    deep = with_(small, model={**small.model, "n_layers": 12})
    comparison = compare_pairs(runner, small, deep, 20)
    # About 5.5 times the work. How wide the interval is depends on what else the machine does.
    assert comparison.verdict == "SLOWER" and comparison.ratio > 2
    assert comparison.facts[work.DIFFERENCE] == work.DIFFERENT_MODELS
    comparison = compare_pairs(runner, deep, small, 20, order="abba")
    assert comparison.verdict == "FASTER" and comparison.ratio < 0.5
    assert comparison.order[:8] == [0, 1, 1, 0, 0, 1, 1, 0]


def test_training_arms_are_compared_by_their_losses_too(runner, small):
    train = with_(small, workload="train")
    comparison = compare(
        runner, train, with_(train, toggles={"precision": "amp_bf16"}), budget_s=1.0
    )
    for arm, error in (("0", 1e-5), ("1", 0.1)):
        numerics = comparison.facts["numerics"][arm]
        assert numerics["ok"] and 0 < numerics["relative_error"] < error
        assert abs(numerics["loss_difference"]) < error
    kinds = {evidence.toggle for evidence in runner.session.segments[-1].evidence}
    assert "precision" in kinds


def test_measuring_on_adds_pairs_to_the_same_comparison(runner, small):
    first = compare(runner, small, small, budget_s=0.5)
    count = len(runner.session.comparisons)
    before = [
        protocol.Block(arm=arm, pair=pair, median_ms=median, void=void)
        for arm, pair, median, void in zip(
            first.order, first.pairs, first.medians_ms, first.voids, strict=True
        )
    ]
    more = compare(runner, small, small, budget_s=0.5, before=before, before_s=0.5)
    assert len(runner.session.comparisons) == count
    assert more.medians_ms[: len(before)] == first.medians_ms
    assert more.facts["pairs"] > first.facts["pairs"]
    assert more.facts["seconds"] > 0.9


@pytest.mark.parametrize("command", [protocol.Stop(), protocol.Cancel()], ids=["stop", "cancel"])
def test_whoever_ends_it_in_the_middle_keeps_what_was_measured(runner, small, command):
    runner.send(protocol.Compare(base=small, other=small, budget_s=500))
    for _ in range(5):
        runner.until(protocol.BlockDone)
    finished = runner.finish(command)
    assert finished.reason == ("stopped" if isinstance(command, protocol.Stop) else "cancelled")
    comparison = runner.session.comparisons[-1]
    assert len(comparison.order) >= 5 and comparison.facts["final"]
    assert comparison.facts["reasons"] == [
        f"measured {comparison.facts['pairs']} of at least 8 pairs"
    ]
    runner.start(small, steps=5)
    assert runner.finish().reason == "done"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget_s": 0.0}, "budget_s = 0: expected more than 0 and at most 1e+09"),
        ({"order": "sorted"}, "order: unknown 'sorted'; expected one of random, abba"),
        ({"region": 1.5}, "region = 1.5: expected at least 0 and less than 1"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(runner, small, options, sentence):
    runner.send(protocol.Compare(base=small, other=small, **options))
    failure = runner.until(protocol.Failure)
    assert (failure.kind, failure.sentence) == ("mistake", sentence)
    assert runner.finish().reason == "failed"


def test_a_run_can_be_turned_into_a_comparison_of_its_last_two_configurations(runner, small):
    runner.start(small)
    runner.until_steps(2)
    runner.send(protocol.Compare(base=small, other=small, budget_s=0.5))
    assert runner.until(protocol.Finished).reason == "stopped"
    assert runner.finish().reason == "done"
    assert runner.session.comparisons[-1].facts["pairs"] >= 1


def test_a_runner_that_is_killed_leaves_every_block_in_the_journal(tmp_path, small):
    path = tmp_path / "killed.journal"
    driver = Driver(Journal(path))
    driver.until_state("idle")
    driver.send(protocol.Compare(base=small, other=small, budget_s=500))
    for _ in range(6):
        driver.until(protocol.BlockDone)
    driver.runner.process.send_signal(signal.SIGKILL)
    driver.rest()
    driver.close()
    comparison = journal.recover(path).comparisons[0]
    assert len(comparison.order) >= 6
    assert comparison.verdict == "UNDECIDED" and not comparison.facts["final"]
    assert len(verdict.pairs(comparison).logs) >= 3


# In this process, with a wire that only records


@pytest.fixture
def context() -> RunnerContext:
    return RunnerContext(RecordingWire(), torch.device("cpu"))


def test_a_base_whose_numbers_are_known_is_not_checked_again(context, small, monkeypatch):
    check, arms = interleaving.comparison.check, []
    monkeypatch.setattr(
        interleaving.comparison, "check", lambda arm, *rest: arms.append(arm) or check(arm, *rest)
    )
    known = Numerics(reference="float64", ok=True, text="checked before")
    command = protocol.Compare(base=small, other=small, budget_s=0.2)
    run = CompareRun(context, command, base_numerics=known)
    run.execute()
    assert len(arms) == 1 and run.numerics[0] is known and run.numerics[1].ok
    sent = [m for m in context.wire.sent if isinstance(m, protocol.NumericsChecked)]
    assert [(message.arm, message.numerics is known) for message in sent] == [(0, True), (1, False)]


def disturbed(context: RunnerContext, small: Configuration, blocks: Container[int]):
    """Let the first arm compile something in each step of so-manyth blocks of its own."""
    situation = resolve(small, context.device)
    arm = context.variants.get(situation, context.phases)
    step = arm.step

    def disturb() -> torch.Tensor:
        done = [message for message in context.wire.sent if isinstance(message, protocol.BlockDone)]
        if sum(message.block.arm == 0 for message in done) in blocks:
            with context.phases.during(Phase.COMPILE):
                pass
        return step()

    arm.step = disturb


def recorded(context: RunnerContext):
    """Return the comparison that the sent messages make, and the session."""
    recorder = Recorder()
    for message in context.wire.sent:
        recorder.record(message)
    (comparison,) = recorder.session.comparisons
    return comparison, recorder.session


def test_a_block_in_which_something_was_compiled_is_void_kept_and_repeated(
    context, small, monkeypatch
):
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.3)
    disturbed(context, small, blocks=(2, 3))
    CompareRun(context, protocol.Compare(base=small, other=small, budget_s=3.0)).execute()
    comparison, session = recorded(context)
    voids = [block for block, void in enumerate(comparison.voids) if void]
    reasons = [comparison.voids[block] for block in voids]
    assert reasons == ["a compile happened during the block"] * 2
    assert {comparison.order[block] for block in voids} == {0}
    steps = session.segments[0].steps
    assert (steps["phase"][steps["block"] == voids[0] + 1] == Phase.COMPILE).all()
    assert len(verdict.pairs(comparison).logs) == comparison.facts["pairs"] > 0
    again = comparison.pairs[voids[0]]
    assert sum(pair == again for pair in comparison.pairs) >= 3
    assert (
        f"void and not counted: {len(voids)} of {len(comparison.order)} blocks"
        in comparison.facts["reasons"][-1]
    )


@pytest.mark.slow
def test_a_comparison_all_of_whose_blocks_are_void_ends_and_says_so(context, small, monkeypatch):
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.2)
    disturbed(context, small, blocks=range(10_000))
    CompareRun(context, protocol.Compare(base=small, other=small, budget_s=300)).execute()
    comparison, _ = recorded(context)
    assert comparison.verdict == "UNDECIDED" and comparison.facts["pairs"] == 0
    reason = comparison.facts["reasons"][-1]
    assert "not counted" in reason and reason.endswith(": a compile happened during the block")


@pytest.mark.parametrize(
    "short", ["while building", pytest.param("in a later step", marks=pytest.mark.slow)]
)
def test_arms_that_do_not_fit_together_are_rebuilt_for_each_block_and_it_says_so(
    context, small, monkeypatch, short
):
    built = []
    build = context.variants._build

    def need_room() -> None:
        gc.collect()
        if sum(reference() is not None for reference in built) > (short == "in a later step"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def build_one_at_a_time(situation, phases, copy):
        if short == "while building":
            need_room()
        arm = build(situation, phases, copy)
        built.append(weakref.ref(arm))
        step, calls = arm.step, itertools.count()

        def tight() -> torch.Tensor:
            if short == "in a later step" and next(calls) > 2:
                need_room()
            return step()

        arm.step = tight
        return arm

    monkeypatch.setattr(context.variants, "_build", build_one_at_a_time)
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    CompareRun(context, protocol.Compare(base=small, other=small, budget_s=2.0)).execute()
    comparison, session = recorded(context)
    announced = [m for m in context.wire.sent if isinstance(m, protocol.ComparisonStarted)]
    assert announced[0].request["rebuilt_each_block"] is (short == "while building")
    assert comparison.facts["rebuilt_each_block"] is True
    expected = "The arms do not fit in memory together: each block built its arm again."
    assert expected in remarks(comparison)
    assert comparison.facts["pairs"] >= 1
    assert len(built) >= len(comparison.order) / 2
    (note,) = (event for event in session.events if event.kind == "warning")
    assert note.text == ("the arms do not fit in memory together: each block builds its arm again")


@pytest.mark.parametrize("cured", [True, False], ids=["memory", "a synchronization"])
def test_a_capture_that_fails_beside_the_other_arm_is_told_for_what_it_is(
    context, small, monkeypatch, cured
):
    builds = itertools.count()
    build = context.variants._build

    def capture(situation, phases, copy):
        if (at := next(builds)) == 1 or (at and not cured):
            raise CaptureError("operation not permitted when stream is capturing")
        return build(situation, phases, copy)

    monkeypatch.setattr(context.variants, "_build", capture)
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    run = CompareRun(context, protocol.Compare(base=small, other=small, budget_s=0.2))
    with contextlib.nullcontext() if cured else pytest.raises(CaptureError):
        run.execute()
    notes = [m.text for m in context.wire.sent if isinstance(m, protocol.Note)]
    expected = "B: trying again after freeing memory: The step could not be captured"
    assert notes[0].startswith(expected)
    assert "not permitted when stream is capturing" in notes[0]
    assert not any("fit in memory" in text for text in notes)
    if cured:
        comparison, _ = recorded(context)
        why = "B could be captured only with no other arm in memory"
        assert notes[1:] == [f"{why}: each block builds its arm again"]
        assert f"{why}: each block built its arm again." in remarks(comparison)
    else:
        assert len(notes) == 1 and next(builds) == 3, "once more, and no oftener"


def paired(context, small, monkeypatch, logs, budget_s=300.0, **options):
    """Compare with pairs of these log ratios, which take no time; the run, and when it judged."""
    for step in ("begin", "settle"):
        monkeypatch.setattr(interleaving.Alternation, step, lambda self, contender: None)
    monkeypatch.setattr(CompareRun, "_look_at", lambda self, contender: None)
    run = CompareRun(
        context, protocol.Compare(base=small, other=small, budget_s=budget_s), **options
    )

    def pair(number, turned):
        for arm, log in enumerate((0.0, logs[number])):
            run.blocks.append(protocol.Block(arm=arm, pair=number, median_ms=math.exp(log)))
        return True

    run._pair = pair
    run.execute()
    return run


def edge(count, log, scatter=0.004):
    return log + scatter * np.tile([1, -1], count // 2)


def test_a_narrow_interval_over_the_edge_does_not_end_it_while_there_is_time(
    context, small, monkeypatch
):
    margin = math.log1p(verdict.REGION)
    logs = np.concatenate([edge(30, margin), edge(400, margin + 0.004)])
    run = paired(context, small, monkeypatch, logs)
    assert run.judgement.verdict == "SLOWER" and run.judgement.pairs > 40
    same = paired(context, small, monkeypatch, edge(400, 0.0))
    assert same.judgement.verdict == "SAME" and same.judgement.pairs < 20


def test_what_is_asked_for_may_be_another_edge(context, small, monkeypatch):
    logs = edge(400, -0.2)
    run = paired(
        context, small, monkeypatch, logs, decides=lambda comparison: comparison.pairs >= 30
    )
    assert run.judgement.pairs == 30 > paired(context, small, monkeypatch, logs).judgement.pairs


def test_what_judging_needs_is_loaded_before_the_time_of_the_budget_begins(
    context, small, monkeypatch
):
    import scipy

    monkeypatch.delitem(sys.modules, "scipy.special")
    monkeypatch.delattr(scipy, "special")
    loaded = []
    send = context.wire.send

    def watch(message):
        send(message)
        if isinstance(message, protocol.State) and message.text == "Alternating A and B":
            loaded.append("scipy.special" in sys.modules)

    monkeypatch.setattr(context.wire, "send", watch)
    paired(context, small, monkeypatch, edge(40, 0.0))
    assert loaded == [True]


@given(st.floats(0.01, 5000), st.floats(0.1, 1000), st.floats(0, 5000))
def test_a_block_is_long_enough_and_the_budget_holds_enough_of_them(step_ms, budget_s, least_ms):
    steps = blocks.block_steps(step_ms, budget_s, 16, least_ms)
    assert steps >= blocks.LEAST_STEPS and steps * step_ms >= 49.99
    if steps < 20:
        assert step_ms * 20 > 1000 * budget_s / 32 - 2 * step_ms - step_ms
    if steps > max(blocks.LEAST_STEPS, 50 / step_ms + 1):
        assert (steps + 2) * step_ms <= 1000 * budget_s / 32 + 1e-6


@pytest.mark.parametrize(
    ("step_ms", "planned", "made"), [(0.2, 5, 20), (12.0, 3, 5), (12.0, 7, 7), (0.2, 30, 30)]
)
def test_a_block_planned_from_slower_steps_goes_on_until_it_is_as_long_as_asked(
    monkeypatch, step_ms, planned, made
):
    now = [0.0]
    monkeypatch.setattr(blocks.time, "perf_counter_ns", lambda: int(1e6 * now[0]))
    monkeypatch.setattr(timing, "now_ns", lambda: int(1e6 * now[0]))

    def step():
        now[0] += step_ms

    pace = ((lambda: False), step)
    context = types.SimpleNamespace(
        clock=make_clock(torch.device("cpu")),
        phases=types.SimpleNamespace(step_phase=lambda _: Phase.STEADY),
        watchdog=types.SimpleNamespace(beat_ns=0),
        wire=types.SimpleNamespace(waiting=False),
    )
    assert blocks._run(context, pace, planned, 50.0)[0] == made
    assert blocks._run(context, pace, planned)[0] == planned
    context.wire.waiting = True
    assert blocks._run(context, pace, planned, 50.0)[0] == 0


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], ""),
        ([{"sm_clock": 1980.0, "throttle": 0.0}, {"sm_clock": 1965.0}], ""),
        ([{"sm_clock": 1980.0, "throttle": 4.0}], ""),  # a power cap: cycles tell its effect
        ([{"sm_clock": 1980.0, "throttle": 0x40}], "the GPU's clock was throttled (heat)"),
        ([{"throttle": 0x68}], "the GPU's clock was throttled (hardware slowdown, heat)"),
        (
            [{"sm_clock": 1980.0}, {"sm_clock": 1500.0}],
            "the SM clock changed by more than 5 % during the block",
        ),
        ([{"sm_clock": 1785.0}, {"sm_clock": 1965.0}] * 10, ""),  # as under a power limit
    ],
)
def test_a_throttled_clock_voids_a_block(samples, expected):
    assert blocks.throttled(samples) == expected


@pytest.mark.parametrize(
    ("command", "error"), [(protocol.Stop(), RunEnded), (protocol.Cancel(), Cancelled)]
)
def test_a_command_ends_a_block_early_and_it_is_not_recorded(context, small, command, error):
    run = CompareRun(context, protocol.Compare(base=small, other=small, budget_s=300))
    send = context.wire.send

    def order(message: protocol.Message) -> None:
        send(message)
        if isinstance(message, protocol.BlockDone):
            context.wire.commands.append(command)

    context.wire.send = order
    with pytest.raises(error):
        run.execute()
    comparison, session = recorded(context)
    assert len(comparison.order) == 1 and comparison.facts["final"]
    steps = session.segments[1 - comparison.order[0]].steps
    assert not steps["block"].any()
