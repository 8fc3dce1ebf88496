"""The time of searches: budgets with slow steps, and what is built late because it takes long."""

from __future__ import annotations

import math

import pytest
from simulated_bench import GIB, SimulatedBench, dimensions

from sessions.studies.optimization.knowledge import Knowledge
from sessions.studies.optimization.search import NO_TIME, Search
from sessions.studies.optimization.space import (
    Candidate,
    Goal,
)
from sessions.studies.optimization.verdicts import Verdicts
from sessions.studies.sweep import FAILED, REFUSED


def search_with(bench: SimulatedBench, budget_s: float) -> tuple[Search, Verdicts]:
    search = Search(bench.dimensions, bench, Goal(budget_s=budget_s))
    search.run()
    verdicts = Verdicts(search)
    verdicts.run()
    return search, verdicts


def slow_bench(step_ms: float, seed: int, **values) -> SimulatedBench:
    """Blocks have two steps, as if steps took seconds. An option saves half of the time."""
    space = dimensions(3, 2, 2, 3, 2)
    return SimulatedBench(
        space, {(0, "b"): -0.7, (3, "c"): 0.3}, predictions={(0, "b"): -0.5}, noise=0.02,
        base_ms=step_ms, block_steps=2, plans_blocks=True, warm_up_steps=5, seed=seed, **values,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("step_ms", [100.0, 600.0, 1200.0, 2400.0])
@pytest.mark.parametrize("budget_s", [60.0, 150.0, 300.0])
def test_a_search_with_slow_steps_keeps_its_budget_and_has_a_verdict_if_that_is_possible(
    budget_s, step_ms, seed
):
    bench = slow_bench(step_ms, seed)
    search, verdicts = search_with(bench, budget_s)
    least_s = 2 * bench.block_steps * step_ms / 1000  # a round of two blocks
    assert search.spent_s <= budget_s + least_s
    needed_s = 13 * least_s + 20 * step_ms / 1000 + 10  # races of 5 rounds and verdicts of 8
    if needed_s > budget_s:
        return
    assert verdicts.best.point[0] == "b"
    assert verdicts.gain().judgement.verdict == "FASTER"


def test_a_candidate_whose_race_would_take_the_time_of_the_verdicts_is_not_raced():
    """A round takes 19 s. The search ended at 1.2 of its budget without a verdict or a reason."""
    search, verdicts = search_with(slow_bench(4800.0, 0), 150.0)
    assert search.spent_s < 150.0 and verdicts.best is search.start
    assert not search.is_complete and not any(c.measurements for c in search.candidates)
    assert set(search.left_out.values()) == {f"{NO_TIME} to try it"}


def test_a_search_without_time_for_another_race_is_not_complete():
    """Time was left, but less than a race takes, so that the search seemed to be complete."""
    for budget_s in range(30, 90, 3):
        search, _ = search_with(slow_bench(400.0, 1), budget_s)
        tried = {candidate.point for candidate in search.candidates if candidate.measurements}
        singles = {
            search.knowledge.refused.get((axis, option)) or point in tried
            for axis, dimension in enumerate(search.dimensions)
            for option in dimension.options
            for point in [(*search.best.point[:axis], option, *search.best.point[axis + 1 :])]
        }
        assert not search.is_complete or all(singles), budget_s


def test_a_candidate_that_is_slower_than_planned_takes_no_time_of_the_verdicts():
    """Its steps take 150 times as long, which nothing predicts."""
    bench = slow_bench(200.0, 0)
    bench.effects = {(0, "b"): -0.7, (1, "b"): 5.0}
    bench.warm_up_steps = 0
    search, verdicts = search_with(bench, 60.0)
    slow = next(c for c in search.candidates if c.point[1] == "b")
    assert not slow.measurements and slow.reason == f"{NO_TIME} to race it"
    assert slow.state != FAILED and search.spent_s < 62.0
    assert verdicts.gain().judgement.verdict == "FASTER"


def test_the_verdict_on_the_result_comes_before_those_on_the_runner_up_and_single_options():
    bench = slow_bench(800.0, 2)
    bench.effects = {(0, "b"): -0.3, (1, "b"): -0.3, (2, "b"): -0.2}
    bench.predictions = dict(bench.effects)
    search, verdicts = search_with(bench, 80.0)
    assert verdicts.gain().judgement.verdict == "FASTER" and search.spent_s < 84.0
    reasons = [e.reason for e in verdicts.effects if e.judgement is None]
    assert reasons and all("no time" in reason for reason in reasons)


def test_a_step_is_compiled_after_the_other_options_were_tried():
    """Every further change of a compiled step takes 30 s to build; 17 changes are tried."""
    space = dimensions(2, *[2] * 16, 2)
    compile_option, last = (0, "b"), (17, "b")
    bench = SimulatedBench(
        space, {compile_option: -0.3, last: -0.2}, builds_s={compile_option: 30.0},
        compiling=frozenset([compile_option]), noise=0.02,
    )  # fmt: skip
    search, _ = search_with(bench, 300.0)
    assert {compile_option, last} <= set(enumerate(search.best.point))
    first = next(c.number for c in search.candidates if c.point[0] == "b")
    assert first > next(c.number for c in search.candidates if c.point[17] == "b")


def test_options_that_compile_do_not_wait_for_more_than_half_of_the_time():
    space = dimensions(2, *[6] * 20)
    bench = SimulatedBench(
        space, {(0, "b"): -0.5}, builds_s={(0, "b"): 30.0}, compiling=frozenset([(0, "b")]),
        noise=0.02,
    )  # fmt: skip
    search, _ = search_with(bench, 300.0)
    assert search.best.point[0] == "b" and not search.is_complete
    assert math.isfinite(search.best.build_s)


def test_compilation_whose_duration_is_unknown_is_not_begun_shortly_before_the_end():
    """It took 45 s of a budget of 60 s, which was exceeded without a verdict."""
    space = dimensions(2, 2, 2)
    compiling = frozenset([(0, "b")])
    bench = SimulatedBench(
        space, {(1, "b"): -0.3}, builds_s={(0, "b"): 45.0}, compiling=compiling, noise=0.02,
        base_ms=25.0, check_s=6.0, plans_blocks=True,
    )  # fmt: skip
    search, verdicts = search_with(bench, 60.0)
    assert search.spent_s < 62.0 and verdicts.gain().judgement.verdict == "FASTER"
    assert any("takes about 20 s" in reason for reason in search.left_out.values())


def test_without_a_race_the_search_takes_the_time_of_verdicts_that_would_be_about_nothing():
    """A check takes 25 s of 60, so that two of them and 0.3 of the budget are too much."""
    bench = SimulatedBench(
        dimensions(2, 2), {(0, "b"): -0.5}, predictions={(0, "b"): -0.5}, check_s=25.0,
        plans_blocks=True, noise=0.02,
    )  # fmt: skip
    search, verdicts = search_with(bench, 60.0)
    assert verdicts.best.point[0] == "b" and search.spent_s < 61.0
    assert verdicts.gain().judgement.verdict == "FASTER"


@pytest.mark.parametrize("has_limit", [False, True])
def test_what_is_too_large_alone_is_not_built_again_for_each_better_candidate(has_limit):
    """A prediction joined it with every other gain: nine builds ran out of memory in turn."""
    space, large = dimensions(*[2] * 8), (3, "b")
    effects = {(axis, "b"): -0.1 for axis in range(8)}
    bench = SimulatedBench(
        space, effects, too_large=frozenset() if has_limit else frozenset([large]),
        memory={large: 0.5} if has_limit else {}, counts_memory=True, predictions={large: -0.5},
        noise=0.005,
    )  # fmt: skip
    limit = 9 * GIB if has_limit else math.inf
    search = Search(space, bench, Goal(budget_s=600.0, memory_limit=limit))
    search.run()
    assert search.best.title.count("=b") == 7 and search.best.point[3] == "a"
    assert sum(large in enumerate(point) for point in bench.built) == 1
    assert "too much memory" in search.left_out[(*["b"] * 8,)]


def test_a_configuration_without_an_option_that_no_time_was_left_for_does_not_count_as_tried():
    """It has no row. A candidate that raced keeps its own reason."""
    bench = slow_bench(800.0, 2)
    bench.effects = {(0, "b"): -0.3, (1, "b"): -0.3, (2, "b"): -0.2}
    bench.predictions = dict(bench.effects)
    search, verdicts = search_with(bench, 80.0)
    assert any("no time" in effect.reason for effect in verdicts.effects)
    assert not any(c.reason for c in search.candidates if c.measurements)
    assert {c.point for c in search.candidates} <= {*bench.built, search.start.point}


def test_a_search_that_dropped_a_candidate_for_lack_of_time_is_not_complete():
    """Later candidates raced in the time that it would have taken."""
    bench = slow_bench(200.0, 0)
    bench.effects, bench.warm_up_steps = {(0, "b"): -0.7, (1, "b"): 5.0}, 0
    search, _ = search_with(bench, 140.0)
    dropped = [c for c in search.candidates if c.reason == f"{NO_TIME} to race it"]
    raced = [c for c in search.candidates if c.measurements]
    assert dropped and max(c.number for c in raced) > dropped[0].number
    assert not search.is_complete


@pytest.mark.parametrize(("state", "why"), [(FAILED, "it failed"), (REFUSED, "it was refused")])
def test_an_option_that_cannot_run_is_not_tried_again_and_the_reason_names_its_state(state, why):
    knowledge, best = Knowledge(), Candidate(0, ("a",), "start")
    candidate = Candidate(1, ("b",), "toggle0=b", state=state)
    knowledge.learn_failure(candidate, best)
    assert knowledge.refused == {(0, "b"): f"{why} in toggle0=b"}
