"""Readings of profiles, facts of segments and compile times, and what gives no number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import wire_samples
from session_samples import steps

from sessions import numerics
from sessions.model import Configuration, Phase, Segment, Session, Study
from sessions.studies import breakdown
from workbench import protocol
from workbench.claims import documents
from workbench.claims._claim import Experiment, Reading, Results, Unmeasured
from workbench.claims._course import Course
from workbench.claims._read_kernels import slowest_kernel
from workbench.claims._read_profiles import (
    activation_share,
    compile_seconds,
    fewer_launches,
    growth,
    growth_of,
    ledger_difference,
    ledger_value,
    longest_right,
    passed_share,
    peak_share,
)

MIB = 2.0**20


def profile(activations: float, peak: float, calls: float) -> Study:
    memory = {role: np.zeros(3) for role in breakdown.ROLES}
    memory["activations"] = np.array([0.0, activations, 0.0])
    memory["workspace"] = np.array([9e9, 0.0, 9e9])
    tables = {"memory": memory, "kernels": {"calls": np.array([calls, calls])}}
    return Study("profile", "", 0.0, {}, {"peak_bytes": peak}, tables)


def results_of(*studies, segments=(), **more) -> Results:
    return Results(Session(), segments, studies, **more)


def segment(family="mamba2", preset="", settings=None, model=None, **ledger) -> Segment:
    configuration = Configuration(
        family=family, preset=preset, settings=settings or {}, model=model or {}
    )
    return Segment(0, configuration, "", ledger=ledger)


def test_activations_are_told_from_all_other_memory():
    both = results_of(profile(100 * MIB, 500 * MIB, 40), profile(60 * MIB, 450 * MIB, 4))
    reading = activation_share()(both)
    assert reading.value == pytest.approx(0.6) and reading.note == "100 MiB become 60 MiB here"
    assert peak_share()(both).value == pytest.approx(0.9)
    assert fewer_launches()(both).value == pytest.approx(10)


@pytest.mark.parametrize("read", [activation_share(), peak_share(), fewer_launches()])
def test_a_profile_that_is_missing_or_empty_gives_no_number(read):
    for studies in ((), (None, None), (profile(1, 1, 1), None)):
        with pytest.raises(Unmeasured, match="the profiles were not finished"):
            read(results_of(*studies))
    with pytest.raises(Unmeasured):
        activation_share()(results_of(profile(0, 1, 1), profile(0, 1, 1)))
    with pytest.raises(Unmeasured):
        peak_share()(results_of(profile(1, math.nan, 1), profile(1, 1, 1)))


def test_facts_of_segments_are_read_at_the_sizes_that_ran():
    segments = [
        segment("mamba2", "96M", {"sequence": 256}, parameters=96e6, state=100, a=5.0, b=2.0),
        segment("mamba2", "47M", {"sequence": 4096}, parameters=47e6, state=700, a=9.0, b=2.0),
        segment("mamba2", "47M", {"sequence": 65536}),
    ]
    here = results_of(segments=segments)
    assert ledger_value("parameters", "96M", 1e6)(here).value == 96
    assert ledger_difference("a", "b", 7)(here).value == 1
    assert growth("state", "sequence")(here).value == 7
    with pytest.raises(Unmeasured, match="state is known at 1 of 1 size"):
        growth("state", "sequence")(results_of(segments=segments[:1]))
    with pytest.raises(Unmeasured, match="no segment records its tokens"):
        ledger_value("tokens")(here)


def test_a_growth_is_that_between_sizes_whose_times_count():
    segments = [segment("mamba2", "96M", {"sequence": size}) for size in (256, 1024, 65536)]
    for ran, count in zip(segments, (9, 9, 1), strict=True):
        ran.steps = steps(count)
    reading = growth_of(lambda _: Reading(2.0, 1.9, 2.1), "sequence")(results_of(segments=segments))
    assert reading.value == pytest.approx(4.0) and reading.note.startswith("256 to 1024")


def test_the_longest_sequence_counts_only_with_right_numbers():
    right, wrong = {numerics.RIGHT: True}, {numerics.RIGHT: False, numerics.TEXT: "off by 3"}
    segments = [
        segment(settings={"sequence": 8192}, **right),
        segment(settings={"sequence": 16384}, **wrong),
        segment(settings={"sequence": 32768}),
    ]
    reading = longest_right("sequence")(results_of(segments=segments))
    assert reading.value == 8192
    assert reading.note == "16384: off by 3; 32768: it did not run to the end"
    with pytest.raises(Unmeasured, match="16384: off by 3"):
        longest_right("sequence")(results_of(segments=segments[1:]))


@pytest.mark.parametrize(
    ("bad", "ladder", "passed"), [(0, 1.0, 1.0), (1, 1.0, 0.75), (1, 0.5, 0.5)]
)
def test_a_test_that_fails_is_not_counted_as_passed(bad, ladder, passed):
    segments = [segment(**{numerics.RIGHT: index >= bad}) for index in range(3)]
    made = [None, None, None, profile(1, 1, 1)]
    read = passed_share(lambda _: Reading(ladder, note="+ compile: failed"), 3)
    assert read(results_of(*made, segments=segments)).value == passed
    with pytest.raises(Unmeasured, match="ran 2 of 3 components"):
        read(results_of(*made, segments=segments[:2]))


def test_the_slowest_of_several_kernels_is_read():
    from test_claim_readings import timed

    segments = []
    for operator, us in (("rope", 50.0), ("swiglu", 80.0)):
        segments += [timed(operator, "torch", [100.0] * 9), timed(operator, "triton", [us] * 9)]
    reading = slowest_kernel([("rope", "one"), ("swiglu", "one")])(results_of(segments=segments))
    assert reading.value == pytest.approx(1.25) and "swiglu" in reading.note


def test_a_noisy_kernel_that_may_be_the_slowest_widens_the_interval_of_the_smallest_speed_up():
    from test_claim_readings import timed

    segments, noisy_us = [], [35.0, 65.0] * 5
    for operator, times_us in (("rope", [50.0] * 10), ("swiglu", noisy_us)):
        segments += [timed(operator, "torch", [100.0] * 10), timed(operator, "triton", times_us)]
    reading = slowest_kernel([("rope", "one"), ("swiglu", "one")])(results_of(segments=segments))
    assert reading.value == pytest.approx(2.0) and "rope" in reading.note
    assert reading.low < 1.7 and reading.high == pytest.approx(2.0) and reading.rounds == 10


def test_a_compile_time_is_that_of_the_first_compilation():
    command = protocol.Start(configuration=Configuration(family="moe", preset="tiny"))
    (claim, *_) = documents()["moe"].experiments[0].claims
    experiment = Experiment(
        name="compile", how="", commands=lambda *_: [command], claims=(claim,), priority=0
    )
    course = Course([(documents()["moe"], experiment)], 3.0, clock=lambda: 0.0)
    catalogue = wire_samples.catalogue()
    list(course.begin(catalogue, Session()))
    assert course.next(catalogue) is command
    phases = [Phase.COMPILE, Phase.AUTOTUNE, Phase.STEADY, Phase.COMPILE, Phase.STEADY]
    for second, phase in enumerate(phases):
        message = protocol.PhaseChanged(t_s=3.0 * second, segment=0, phase=phase)
        list(course.on_message(message))
    part = course._current.parts[0]
    assert (part.first_compile_s, part.compiling_s) == (6.0, 9.0)
    assert compile_seconds()(results_of(compile_s=[part.first_compile_s])).value == 6.0
    with pytest.raises(Unmeasured, match="nothing was compiled"):
        compile_seconds()(results_of(compile_s=[0.0]))
