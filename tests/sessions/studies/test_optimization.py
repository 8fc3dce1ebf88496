"""The search for the best configuration, in simulated spaces of which the optimum is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_bench import GIB, SimulatedBench, dimensions

from sessions.model import Numerics
from sessions.studies.optimization.search import NO_TIME, Search
from sessions.studies.optimization.space import (
    LEAST_ROUNDS,
    MEMORY,
    NO_EFFECT,
    TOO_LARGE,
    Candidate,
    Goal,
    Measurement,
    StartFailed,
    pareto_front,
)
from sessions.studies.optimization.verdicts import GAIN, RUNNER_UP, WITHOUT, Verdicts
from sessions.studies.sweep import FAILED, OUT_OF_MEMORY

SMALL_LOSS = 0.014  # of an option that helps only together with another one


def searched(bench: SimulatedBench, **goal) -> tuple[Search, Verdicts]:
    search = Search(bench.dimensions, bench, Goal(**{"budget_s": 600.0, **goal}))
    search.run()
    verdicts = Verdicts(search)
    verdicts.run()
    return search, verdicts


@st.composite
def benches(draw) -> SimulatedBench:
    """Spaces with options that help or harm, pairs that interact, and wrong or large options."""
    space = dimensions(*draw(st.lists(st.integers(2, 3), min_size=2, max_size=6)))
    options = [
        (axis, option) for axis, dimension in enumerate(space) for option in dimension.options[1:]
    ]
    effects = {option: draw(st.floats(-0.3, 0.3)) for option in options}
    interactions = {}
    axes = draw(st.permutations(range(len(space))))
    for first, second in list(zip(axes[::2], axes[1::2], strict=False))[: draw(st.integers(0, 2))]:
        pair = (first, "b"), (second, "b")
        interactions[pair] = draw(st.floats(-0.2, 0.2))
        if interactions[pair] < 0:  # within the reach that the search declares
            effects |= {option: min(effects[option], SMALL_LOSS) for option in pair}
            effects |= {  # no third option of these toggles is better than both alone
                (axis, option): max(effect, effects[axis, "b"])
                for (axis, option), effect in effects.items()
                if axis in (first, second)
            }
    kinds = st.sampled_from(["right"] * 6 + ["wrong", "large", "blocked"])
    marks = {option: draw(kinds) for option in options}
    effects |= {option: -0.5 for option, mark in marks.items() if mark in ("wrong", "large")}

    def marked(mark: str) -> frozenset:
        return frozenset(option for option in options if marks[option] == mark)

    return SimulatedBench(
        space,
        effects,
        interactions,
        wrong=marked("wrong"),
        too_large=marked("large"),
        blocked=marked("blocked"),
        noise=draw(st.floats(0.001, 0.015)),
        drift=draw(st.floats(0.0, 0.01)),
        seed=draw(st.integers(0, 2**32)),
    )


SMALL_LOSSES = SimulatedBench(  # both estimated 1 % too high, because the start ran fast
    dimensions(2, 3, 2),
    {(0, "b"): SMALL_LOSS, (1, "b"): 0.25, (1, "c"): -0.5, (2, "b"): SMALL_LOSS},
    {((0, "b"), (2, "b")): -0.125},
    too_large=frozenset({(1, "c")}),
    noise=0.0078125,
    seed=768,
)


@given(benches())
@example(SMALL_LOSSES)
@settings(deadline=None)
def test_the_optimum_is_the_result_and_wrong_results_are_never_proposed(bench):
    search = Search(bench.dimensions, bench, Goal(budget_s=3000.0))
    search.run()
    assert search.proposable(search.best) and search.is_complete
    assert bench.truth(search.best.point) <= bench.optimum() + 0.01
    proposable = [candidate for candidate in search.candidates if search.proposable(candidate)]
    assert all(bench.is_right(candidate.point) for candidate in proposable)
    assert not {point for point in bench.built if set(enumerate(point)) & bench.blocked}
    for candidate in search.candidates:
        too_large = set(enumerate(candidate.point)) & bench.too_large
        assert (candidate.state == OUT_OF_MEMORY) == bool(too_large)


@pytest.mark.parametrize("seed", range(2))
def test_a_large_space_takes_less_than_a_fifth_of_the_time_of_a_sweep(seed):
    chance = np.random.default_rng(seed)
    space = dimensions(3, 3, 3, 2, 2, 2, 2)
    effects = {
        (axis, option): float(chance.uniform(-0.2, 0.2))
        for axis, dimension in enumerate(space)
        for option in dimension.options[1:]
    }
    bench = SimulatedBench(space, effects, noise=0.01, drift=0.005, seed=seed)
    search, verdicts = searched(bench)
    assert bench.truth(search.best.point) <= bench.optimum() + 0.01
    assert search.spent_s < bench.sweep_seconds() / 5, "verdicts included"
    assert verdicts.is_settled


def test_the_reported_gain_is_not_biased_by_the_choice_of_the_best():
    """None of 12 options does anything, and the luckiest looks best: the final blocks tell."""
    space = dimensions(5, 5, 5)
    promised, reported, inside = [], [], 0
    for seed in range(8):
        bench = SimulatedBench(space, {}, noise=0.06, drift=0.01, seed=seed)
        search = Search(space, bench, Goal(budget_s=90.0))
        search.run()
        search.best = min(search.candidates[1:], key=lambda candidate: candidate.value)
        promised.append(search.best.value)
        verdicts = Verdicts(search, half_width=0.03)
        verdicts.run()
        judgement = verdicts.gain().judgement
        reported.append(math.log(judgement.ratio))
        inside += judgement.low <= 1 <= judgement.high
        half = math.log(judgement.high / judgement.low) / 2
    assert np.mean(promised) < -0.01, "the search itself promises too much"
    assert abs(np.mean(reported)) < half / 2, "new blocks do not"
    assert inside >= 7


def test_the_verdicts_are_about_start_and_runner_up_and_each_change():
    space = dimensions(2, 2, 2)
    effects = {(0, "b"): -0.2, (1, "b"): -0.1, (2, "b"): 0.05}
    bench = SimulatedBench(space, effects, builds_s={(0, "b"): 4.0}, noise=0.003, drift=0.01)
    search, verdicts = searched(bench)
    assert search.best.title == "toggle0=b, toggle1=b"
    judged = {(e.contrast.kind, e.contrast.name): e.judgement for e in verdicts.effects}
    total = judged[GAIN, "best against start"]
    assert total.verdict == "FASTER" and total.low < math.exp(-0.3) < total.high
    for name, effect in (("toggle0=b", -0.2), ("toggle1=b", -0.1)):
        assert judged[WITHOUT, name].low < math.exp(effect) < judged[WITHOUT, name].high
    (runner_up,) = (judgement for (kind, _), judgement in judged.items() if kind == RUNNER_UP)
    assert runner_up.ratio < 1 and verdicts.runner_up.is_right
    saved_ms = bench.base_ms * (1 - math.exp(-0.3))
    first = next(candidate for candidate in search.candidates if candidate.point[0] == "b")
    longer_s = 4.0 * len({first.number, search.best.number})  # this bench has no caches
    assert verdicts.payoff_steps() == pytest.approx(1000 * longer_s / saved_ms, rel=0.1)
    assert search.spent_s <= search.goal.budget_s


class NeedyBench(SimulatedBench):
    """The second toggle's option needs that of the first one."""

    def usable(self, point):
        return (("b", *point[1:]) if point[1] == "b" else point), ""


def test_an_option_that_another_one_needs_has_no_contribution_of_its_own():
    """A captured step needs the fused optimizer, so that "without" it is the same step."""
    bench = NeedyBench(dimensions(2, 2), {(0, "b"): -0.2, (1, "b"): -0.3}, noise=0.003)
    search, verdicts = searched(bench)
    assert search.best.title == "toggle0=b, toggle1=b"
    without = {e.contrast.name: e for e in verdicts.effects if e.contrast.kind == WITHOUT}
    assert without.keys() == {"toggle0=b", "toggle1=b"}
    assert without["toggle0=b"].judgement is None and "needs it" in without["toggle0=b"].reason
    assert without["toggle1=b"].judgement.low < math.exp(-0.3) < without["toggle1=b"].judgement.high


def test_the_prediction_of_an_option_is_without_that_of_the_option_that_it_needs():
    """The attention of cuDNN needs 16 bits. All of their gain was predicted for it as well."""
    gains = {(0, "b"): -0.3, (1, "b"): 0.02}
    bench = NeedyBench(dimensions(2, 2), gains, predictions=gains, noise=0.003)
    search, _ = searched(bench)
    assert search.knowledge.predicted == pytest.approx(gains)
    assert search.candidates[1].title == search.best.title == "toggle0=b"


def test_a_candidate_of_which_no_block_counts_says_why():
    class Growing(SimulatedBench):
        def round(self, candidates):
            blocks = super().round(candidates)
            for candidate in candidates:
                if candidate.point[0] == "b":
                    candidate.void = "the allocator reserved memory during the block"
                    del blocks[candidate.number]
            return blocks

    search, _ = searched(Growing(dimensions(2), {(0, "b"): -0.3}), budget_s=60.0)
    assert search.best is search.start and search.candidates[1].state == FAILED
    assert search.candidates[1].reason == f"all its blocks are void: {search.candidates[1].void}"


def test_an_option_that_the_result_excludes_is_tried_in_its_place():
    effects = {(0, "b"): -0.1, (4, "b"): -0.4, (5, "b"): -0.2}
    bench = SimulatedBench(
        dimensions(2, 2, 2, 2, 2, 2), effects, excluded={(0, "b"): (4, "b")}, noise=0.003
    )
    search, verdicts = searched(bench)
    assert search.is_complete
    assert verdicts.best.title == "toggle4=b, toggle5=b"


def test_a_candidate_whose_error_or_memory_is_not_known_keeps_no_limit():
    bench = SimulatedBench(dimensions(2), {(0, "b"): -0.1})
    for limits, reason in (
        ({"max_error": 1.0}, "its largest error is not known"),
        ({"memory_limit": GIB}, "its peak memory is not known"),
    ):
        search = Search(bench.dimensions, bench, Goal(**limits))
        search.start.numerics = Numerics(reference="float64", ok=True, text="")
        assert search.objection(search.start) == reason


def test_what_no_time_was_left_for_is_listed_and_the_search_says_that_it_is_not_complete():
    space = dimensions(4, 4, 4)
    builds_s = {(2, option): 500.0 for option in "bcd"}
    effects = {(axis, option): -0.1 for axis in (0, 1) for option in "bcd"}
    bench = SimulatedBench(space, effects, builds_s=builds_s, build_s=2.0)
    search, _ = searched(bench, budget_s=60.0)
    assert not search.is_complete
    reasons = set(search.left_out.values())
    assert any(reason.startswith(NO_TIME) for reason in reasons)
    tried = {candidate.point for candidate in search.candidates}
    assert not tried & search.left_out.keys()


def test_a_prediction_decides_what_is_tried_first():
    space = dimensions(2, 2, 2, 2, 2, 2)
    predictions = {(5, "b"): -0.3, (3, "b"): -0.2, (0, "b"): 0.4}
    bench = SimulatedBench(space, {}, predictions=predictions)
    search = Search(space, bench, Goal(budget_s=100.0))
    search.run()
    titles = [candidate.title for candidate in search.candidates]
    assert titles[1] == "toggle3=b, toggle5=b", "all that should help, at once"
    assert search.candidates[titles.index("toggle5=b")].predicted == -0.3


def test_an_option_that_needs_another_one_is_predicted_together_with_it():
    space = dimensions(2, 2, 2, 2, 2, 2)
    bench = NeedyBench(space, {}, predictions={(1, "b"): -0.3})
    search = Search(space, bench, Goal(budget_s=100.0))
    search.run()
    assert search.candidates[1].title == "toggle0=b, toggle1=b"


def test_saved_waits_are_known_where_predictions_take_all_their_time():
    """Each prediction takes a second, as of large models, and 5 s are left for them."""
    space = dimensions(6, 6, 2)
    predictions = {(1, "b"): -0.1, (0, "f"): -0.9}
    bench = SimulatedBench(
        space, {}, predictions=predictions, prediction_s=1.0, waits={(2, "b"): -0.5}
    )
    search = Search(space, bench, Goal(budget_s=100.0))
    search.run()
    known = {option for option, ratio in search.knowledge.predicted.items() if ratio == ratio}
    assert known == {(2, "b"), (1, "b")}, "the second dimension has a turn before a sixth option"
    assert search.candidates[1].title == "toggle1=b, toggle2=b"


def test_what_saves_waits_is_tried_once_the_best_steps_wait_for_their_launches():
    """The start's steps of 100 ms keep the GPU busy; the best one's take 30 ms of launches."""
    space = dimensions(2, 4, 4, 4, 4, 2)
    bench = SimulatedBench(
        space,
        {(0, "b"): -2.0},
        predictions={(0, "b"): -2.0, (5, "b"): 0.0},
        base_ms=100.0,
        host_ms=30.0,
        capturing=frozenset({(5, "b")}),
    )
    search = Search(space, bench, Goal(budget_s=60.0))
    search.run()
    titles = [candidate.title for candidate in search.candidates]
    assert titles[:3] == ["start", "toggle0=b", "toggle0=b, toggle5=b"]
    assert search.best.title == "toggle0=b, toggle5=b"


def test_saved_waits_promise_nothing_where_memory_decides():
    space = dimensions(2, 2, 2)
    captured = (2, "b")
    bench = SimulatedBench(
        space,
        {(0, "b"): -2.0},
        counts_memory=True,
        memory={(0, "b"): -0.5, captured: 0.3},
        base_ms=100.0,
        host_ms=30.0,
        capturing=frozenset({captured}),
    )
    search = Search(space, bench, Goal(objective=MEMORY, budget_s=100.0))
    search.run()
    assert search.best.point[0] == "b" and search.best.point[2] == "a"
    assert math.isnan(search.knowledge.predicted[captured])


def test_the_other_options_of_a_promising_dimension_are_predicted_next():
    """Each prediction takes a second, and 5 s are left for those of eight options."""
    space = dimensions(4, 2, 2, 2, 2, 2)
    predictions = {(0, "b"): -0.5, (0, "d"): -0.9}
    bench = SimulatedBench(space, {}, predictions=predictions, prediction_s=1.0)
    search = Search(space, bench, Goal(budget_s=100.0))
    search.run()
    assert search.candidates[1].title == "toggle0=d"


def test_an_option_of_unknown_effect_is_tried_before_those_that_should_be_worse():
    space = dimensions(3, 3)
    predictions = {(0, "b"): -1.2, (1, "b"): 0.3, (1, "c"): 0.2}
    bench = SimulatedBench(space, predictions | {(0, "c"): -1.9}, predictions=predictions)
    search = Search(space, bench, Goal(budget_s=100.0))
    search.run()
    titles = [candidate.title for candidate in search.candidates]
    assert titles[1:3] == ["toggle0=b", "toggle0=c"]


def test_of_options_that_promise_the_same_the_one_that_is_built_sooner_is_tried_first():
    """An option needs a second option, which took 30 s to build."""
    space = dimensions(2, 2, 2, 2, 2, 3)

    class CompilingBench(SimulatedBench):
        def usable(self, point):
            return (("b", *point[1:]) if point[5] == "b" else point), ""

    bench = CompilingBench(space, {(0, "b"): -0.001}, builds_s={(0, "b"): 30.0}, noise=0.0003)
    search = Search(space, bench, Goal(budget_s=600.0))
    search.run()
    titles = [candidate.title for candidate in search.candidates]
    assert titles[5:8] == ["toggle4=b", "toggle5=c", "toggle0=b, toggle5=b"]


@pytest.mark.parametrize(
    ("ok", "reason"), [(False, "wrong numbers"), (None, "its numbers could not be checked")]
)
def test_an_option_that_a_check_refuses_is_left_out_with_the_reason(ok, reason):
    class Checking(SimulatedBench):
        def check(self, candidate):
            good = candidate.point[0] == "a"
            return Numerics(reference="float64", ok=True if good else ok, text="x")

    bench = Checking(dimensions(2, 2), {(0, "b"): -0.5, (1, "b"): -0.3}, noise=0.003)
    search = Search(bench.dimensions, bench, Goal(budget_s=600.0))
    search.run()
    assert search.best.title == "toggle1=b"
    assert search.knowledge.refused[0, "b"] == f"{reason} in toggle0=b"


def test_where_nothing_is_known_every_dimension_has_a_turn_before_a_second_option_of_one():
    space = dimensions(5, 6, 3)
    search = Search(space, SimulatedBench(space, {}), Goal(budget_s=100.0))
    search.run()
    titles = [candidate.title for candidate in search.candidates]
    assert titles[1:4] == ["toggle0=b", "toggle1=b", "toggle2=b"]


def test_near_ties_leave_time_for_options_that_were_not_tried():
    """Blocks of 0.5 s, as beside a slow host: a race of 16 rounds takes 40 s of the 84."""
    space, off = dimensions(5, 6, 4, 3, 2), []
    for seed in range(12):
        chance = np.random.default_rng(seed)
        gains = [0.0, 0.0, 0.1, 0.2, -0.03, -0.15, -0.3, 0.005, -0.004]
        effects = {
            (axis, option): float(chance.choice(gains))
            for axis, dimension in enumerate(space)
            for option in dimension.options[1:]
        }
        bench = SimulatedBench(
            space, effects, noise=0.05, drift=0.01, base_ms=25.0, build_s=2.0, seed=seed
        )
        search = Search(space, bench, Goal(budget_s=120.0))
        search.run()
        off.append(bench.truth(search.best.point) - bench.optimum())
    assert np.mean(off) < 0.2


@pytest.mark.parametrize("budget_s", range(50, 100, 10))
def test_what_was_built_has_raced_for_long_enough_to_be_chosen(budget_s):
    """One option makes the step twice as fast, on a GPU whose host is the limit."""
    space = dimensions(4, 4, 4, 8, 3, 2)
    bench = SimulatedBench(
        space, {(1, "b"): -0.7}, noise=0.15, base_ms=40.0, build_s=0.8, check_s=7.0, seed=budget_s
    )
    search = Search(space, bench, Goal(budget_s=float(budget_s)))
    search.run()
    raced = [candidate.race(candidate.against).n for candidate in search.candidates[1:]]
    assert raced and min(raced) >= LEAST_ROUNDS
    assert search.best.title == "toggle1=b" and search.spent_s < budget_s


def test_options_without_effect_are_not_raced():
    bench = SimulatedBench(dimensions(2, 2), {(0, "b"): -0.1}, idle=frozenset({(1, "b")}))
    search, _ = searched(bench)
    (idle,) = (c for c in search.candidates if c.state == NO_EFFECT)
    assert idle.title.endswith("toggle1=b") and not idle.measurements
    assert "nothing calls it" in idle.reason


def test_the_least_memory_wins_where_that_is_the_objective():
    memory = {(0, "b"): -0.3, (1, "b"): 0.2, (2, "b"): -0.1}
    effects = {(0, "b"): 0.3, (1, "b"): -0.4, (2, "b"): 0.0}
    bench = SimulatedBench(dimensions(2, 2, 2), effects, memory=memory, counts_memory=True)
    search, verdicts = searched(bench, objective=MEMORY)
    assert search.best.title == "toggle0=b, toggle2=b"
    assert verdicts.gain().judgement.ratio == pytest.approx(math.exp(0.3), rel=0.02)
    assert {"toggle1=b", search.best.title} <= {c.title for c in verdicts.front()}


def test_no_configuration_over_the_memory_limit_is_proposed():
    memory = {(0, "b"): 0.5, (1, "b"): -0.5}
    effects = {(0, "b"): -0.4, (1, "b"): 0.1}
    bench = SimulatedBench(dimensions(2, 2), effects, memory=memory, counts_memory=True)
    search, _ = searched(bench, memory_limit=9 * GIB)
    assert search.best.title == "toggle0=b, toggle1=b", "which fits only together"
    (large,) = (c for c in search.candidates if c.state == TOO_LARGE)
    assert large.title == "toggle0=b" and not search.proposable(large)


def test_a_start_with_wrong_numbers_gives_way_to_a_slower_configuration_that_is_right():
    bench = SimulatedBench(
        dimensions(2), {(0, "a"): 0.0, (0, "b"): 0.2}, wrong=frozenset({(0, "a")})
    )
    search, verdicts = searched(bench)
    assert search.best.title == "toggle0=b" and verdicts.best is search.best


def test_a_start_that_cannot_be_built_ends_the_search_with_its_reason():
    bench = SimulatedBench(dimensions(2), {}, too_large=frozenset({(0, "a")}))
    with pytest.raises(StartFailed, match=r"3\.0 GiB more was needed"):
        Search(bench.dimensions, bench, Goal()).run()


def test_the_best_candidate_is_on_the_front_beside_a_near_tie_of_a_lower_estimate():
    search, verdicts = searched(SimulatedBench(dimensions(2, 2), {(0, "b"): -0.2}))
    rival = next(c for c in search.candidates if c is not search.best and search.proposable(c))
    rival.time, rival.peak_bytes = search.best.time - 0.001, search.best.peak_bytes
    front = verdicts.front()
    assert search.best in front and front[0] is rival


@given(st.lists(st.tuples(*[st.floats(0.1, 10) | st.just(math.nan)] * 3), min_size=1, max_size=12))
def test_no_candidate_of_the_front_is_beaten_and_every_other_one_is(rows):
    candidates = []
    for number, (time, peak, joules) in enumerate(rows):
        candidate = Candidate(number, (), str(number), time=time, peak_bytes=peak)
        candidate.measurements = [Measurement(1.0, joules=joules)]
        candidates.append(candidate)
    known = [axis for axis in range(3) if all(math.isfinite(row[axis]) for row in rows)]
    values = {c: [rows[c.number][axis] for axis in known] for c in candidates}

    def beats(a: Candidate, b: Candidate) -> bool:
        pairs = list(zip(values[a], values[b], strict=True))
        return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

    front = pareto_front(candidates)
    assert front, "something is always on it"
    for candidate in candidates:
        assert (candidate in front) != any(beats(other, candidate) for other in candidates)


@pytest.mark.parametrize("seed", range(4))
def test_verdicts_hold_for_all_builds_and_not_for_those_that_ran(seed):
    bench = SimulatedBench(
        dimensions(2, 2),
        {(0, "b"): -0.2, (1, "b"): 0.1},
        noise=0.002,
        build_noise=0.01,
        build_s=0.2,
        check_s=20.0,  # builds are cheap for this search
        seed=seed,
    )
    _, verdicts = searched(bench)
    assert len(set(verdicts.builds)) >= 3 and not verdicts.one_build
    gain = verdicts.gain()
    assert gain.judgement.low <= math.exp(-0.2) <= gain.judgement.high
    # A build moves all of its blocks by one percent: one build alone would claim too much.
    assert math.log(gain.judgement.high / gain.judgement.low) > 0.004


def test_arms_that_take_long_to_build_are_built_once_and_the_reason_is_given():
    bench = SimulatedBench(dimensions(2), {(0, "b"): -0.2}, build_s=60.0, seed=1)
    _, verdicts = searched(bench)
    assert set(verdicts.builds) == {0}
    assert "building all arms again takes" in verdicts.one_build
