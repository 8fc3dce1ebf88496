"""Results of searches that new blocks replace, by the objective of the search."""

from __future__ import annotations

import pytest
from simulated_bench import SimulatedBench, dimensions

from sessions.studies.optimization.rows import final_facts
from sessions.studies.optimization.search import Search
from sessions.studies.optimization.space import MEMORY, RACED, TIME, Goal
from sessions.studies.optimization.verdicts import Verdicts

JOINED = "toggle0=b, toggle1=b"  # two options, the second of which is harmful


def joined(objective: str) -> tuple[Search, Verdicts]:
    """Return verdicts of a search that joined two options and had no time to race each alone."""
    harm = {(0, "b"): -0.3, (1, "b"): 0.05}
    effects = {TIME: harm, MEMORY: {}}[objective]
    bench = SimulatedBench(
        dimensions(2, 2, 2), effects, memory=harm, counts_memory=True, noise=0.002
    )
    search = Search(bench.dimensions, bench, Goal(objective=objective, budget_s=100.0))
    search.best = search.candidate(("b", "b", "a"))
    search.start.value = search.start.time = 0.0
    search.best.state, search.best.value, search.best.time = RACED, -0.25, -0.25
    assert all(search.build(c) is None for c in search.candidates) and search.check(search.best)
    verdicts = Verdicts(search)
    return search, verdicts


@pytest.mark.parametrize("objective", [TIME, MEMORY])
def test_an_option_that_costs_the_objective_is_dropped(objective):
    search, verdicts = joined(objective)
    verdicts.run()
    assert verdicts.best is search.best and search.best.title == "toggle0=b"
    assert search.proposable(search.best) and search.best in verdicts.front()
    assert search.best.value == pytest.approx(-0.3, abs=0.01)
    assert verdicts.runner_up is not None and verdicts.runner_up.title == JOINED


def test_a_start_that_needs_less_memory_than_the_result_takes_its_place():
    bench = SimulatedBench(dimensions(2), {}, memory={(0, "b"): 0.1}, counts_memory=True)
    search = Search(bench.dimensions, bench, Goal(objective=MEMORY, budget_s=60.0))
    search.run()
    search.best = search.candidates[1]
    assert search.check(search.best)
    verdicts = Verdicts(search)
    verdicts.run()
    assert verdicts.best is search.start


def test_a_search_is_complete_only_for_the_result_that_it_searched():
    search, verdicts = joined(TIME)
    search.is_complete = True  # every change of the joined options was tried
    verdicts.run()
    assert search.best.title == "toggle0=b", "whose own changes were not tried"
    assert not final_facts(search, verdicts)["complete"]
