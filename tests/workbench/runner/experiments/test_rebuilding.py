"""Comparisons that build both arms again: when, how often, and what the session keeps of it."""

from __future__ import annotations

import gc
import math
import random
import weakref

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording_wire import RecordingWire

from sessions.reproduction import command_lines
from sessions.storage import hdf5
from sessions.verdicts.verdict_words import remarks
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.building import variant_cache
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired import interleaving, rebuilding
from workbench.runner.experiments.paired.blocks import Contender
from workbench.runner.numerics import comparison as numerics

CPU = torch.device("cpu")


@given(st.floats(0.1, 1e4), st.floats(0.001, 1e3), st.floats(0.05, 1e3))
def test_building_again_takes_a_quarter_of_the_time_at_most(budget_s, rebuild_s, pair_s):
    plan = rebuilding.plan(0, budget_s, rebuild_s, pair_s)
    if math.isinf(plan.slice_s):
        assert plan.least == 1 and "too long for a budget of" in plan.why
        return
    assert not plan.why and plan.least == rebuilding.LEAST_BUILDS
    assert rebuild_s <= 0.2501 * (plan.slice_s + rebuild_s)
    assert plan.slice_s >= rebuilding.PAIRS * pair_s
    assert rebuilding.LEAST_PLANNED * (plan.slice_s + rebuild_s) <= budget_s
    assert plan.seconds(0.0) == plan.slice_s
    assert plan.seconds(3600.0) >= 450.0, "hours need no hundreds of builds"


def test_a_number_of_builds_that_was_requested_is_kept_to_whatever_it_costs():
    assert rebuilding.plan(5, 20.0, 100.0, 1.0).slice_s == 0
    assert rebuilding.plan(5, 20.0, 1.0, 1.0).slice_s == 3.0
    assert rebuilding.plan(1, 1e6, 0.001, 0.01).why == "one build was requested"
    more = rebuilding.plan(0, 5.0, 1.0, 0.1, before=4)
    assert more.least == 3, "those of before count"
    assert rebuilding.plan(0, 5.0, 1.0, 0.1).least == 1


@pytest.fixture
def context() -> RunnerContext:
    return RunnerContext(RecordingWire(), CPU)


def recorded(context):
    recorder = Recorder()
    for message in context.wire.sent:
        recorder.record(message)
    (comparison,) = recorder.session.comparisons
    return comparison, recorder.session


def test_both_arms_are_built_again_in_random_order_and_the_old_ones_are_freed(
    context, small, monkeypatch
):
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    both = resolve(small, CPU)
    turns = interleaving.Alternation(context, 1.0, 16, "busy")
    turns.contenders = [Contender(number, number, both, "AB"[number]) for number in (0, 1)]
    for contender in turns.contenders:
        contender.segment = context.begin_segment()
        turns.build(contender)
    built, make = [], context.variants._build
    chance, orders = random.Random(0), set()

    def remember(situation, phases, copy):
        arm = make(situation, phases, copy)
        built.append(weakref.ref(arm))
        return arm

    monkeypatch.setattr(context.variants, "_build", remember)
    for _ in range(6):
        before = [weakref.ref(contender.variant) for contender in turns.contenders]
        turns.rebuild(chance)
        gc.collect()
        assert all(reference() is None for reference in before)
        assert context.variants.count == 2 and all(
            contender.variant.startup_s > 0 for contender in turns.contenders
        )
        orders.add(turns.contenders[0].variant is built[-2]())
    assert orders == {True, False}
    weights = [next(iter(contender.variant.model.parameters())) for contender in turns.contenders]
    assert weights[0].data_ptr() == weights[1].data_ptr(), "which are shared, and stay"


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [1, 3])
def test_blocks_are_kept_with_their_build_and_the_command_repeats_them(
    context, small, monkeypatch, tmp_path, count
):
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    command = protocol.Compare(base=small, other=small, budget_s=3.0, build_count=count)
    CompareRun(context, command).execute()
    comparison, session = recorded(context)
    assert len(comparison.builds) == len(comparison.order)
    builds = dict.fromkeys(comparison.builds)
    assert list(builds) == list(range(len(builds)))
    assert (len(builds) == 1) == (count == 1)
    for pair in set(comparison.pairs):
        of_pair = {b for b, p in zip(comparison.builds, comparison.pairs, strict=True) if p == pair}
        assert len(of_pair) == 1, "both blocks of a pair are of one build"
    remark = "This holds for the build that was measured: one build was requested."
    assert (remark in remarks(comparison)) == (count == 1)
    path = tmp_path / "builds.h5"
    hdf5.save(session, path)
    again = hdf5.load(path)
    assert again.comparisons[0].builds == comparison.builds
    assert f"--builds {count}" in command_lines.session_commands(again)


def test_a_file_from_before_builds_were_kept_opens_as_one_build(context, small, tmp_path):
    old = msgspec.structs.replace(
        protocol_comparison([0.0, 0.01, 0.0, 0.01]), facts={"segments": []}
    )
    recorder = Recorder()
    recorder.session.comparisons.append(old)
    hdf5.save(recorder.session, tmp_path / "old.h5")
    (again,) = hdf5.load(tmp_path / "old.h5").comparisons
    assert again.builds == [] and again.pairs == old.pairs


def protocol_comparison(logs):
    from workbench.runner.experiments.paired.blocks import comparison_of

    blocks = [
        protocol.Block(arm=arm, pair=pair, median_ms=math.exp(arm * log))
        for pair, log in enumerate(logs)
        for arm in (0, 1)
    ]
    return msgspec.structs.replace(comparison_of(blocks), arms=["A", "B"], builds=[])


def test_two_builds_are_refused_because_they_do_not_show_how_far_builds_differ(runner, small):
    runner.send(protocol.Compare(base=small, other=small, build_count=2))
    failure = runner.until(protocol.Failure)
    assert failure.kind == "mistake" and "build_count = 2: expected 1" in failure.sentence
    runner.finish()


def test_a_check_frees_the_other_arm_if_memory_is_short_and_the_comparison_goes_on(
    context, small, monkeypatch
):
    """A reference in FP64 may not fit beside captured arms, and "not checked" is no result."""
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    monkeypatch.setattr(interleaving, "free_bytes", lambda device: 0)
    monkeypatch.setattr(variant_cache, "free_bytes", lambda device: 0)
    monkeypatch.setattr(numerics, "bytes_wanted", lambda variant: 1)
    in_memory, check = [], numerics.check

    def remember(*given):
        gc.collect()
        in_memory.append(context.variants.count)
        return check(*given)

    monkeypatch.setattr(numerics, "check", remember)
    other = msgspec.structs.replace(small, toggles={**small.toggles, "rope_cache": "per_layer"})
    command = protocol.Compare(base=small, other=other, budget_s=3.0, build_count=3)
    CompareRun(context, command).execute()
    measured, session = recorded(context)
    assert in_memory == [1, 1]
    assert math.isfinite(measured.ratio) and len(set(measured.pairs)) > 1
    assert len(set(measured.builds)) > 1, "both are built again before builds are planned"
    assert all(segment.ledger["numbers_right"] for segment in session.segments)
    assert not measured.facts.get("rebuilt_each_block")
