"""Final verdicts that replace the best candidate of a search, in simulated spaces."""

from __future__ import annotations

import math

import pytest
from simulated_bench import SimulatedBench, dimensions

from sessions.studies.optimization.search import Search
from sessions.studies.optimization.space import (
    RACED,
    Failure,
    Goal,
)
from sessions.studies.optimization.verdicts import GAIN, RUNNER_UP, WITHOUT, Verdicts
from sessions.studies.sweep import OUT_OF_MEMORY


def test_a_best_candidate_that_new_blocks_show_to_be_slower_is_not_proposed():
    bench = SimulatedBench(dimensions(2), {(0, "b"): 0.1}, noise=0.003)
    search = Search(bench.dimensions, bench, Goal(budget_s=100.0))
    search.run()
    search.best = search.candidates[1]  # as after a search that was very unlucky
    verdicts = Verdicts(search)
    verdicts.run()
    assert verdicts.gain().judgement.verdict == "SLOWER" and verdicts.best is search.start


@pytest.mark.parametrize("budget_s", [45.0, 400.0])
def test_a_runner_up_that_new_blocks_show_to_be_faster_is_proposed_with_its_own_verdicts(budget_s):
    effects = {(0, "b"): -0.1, (1, "b"): -0.1, (2, "b"): 0.1}
    bench = SimulatedBench(dimensions(2, 2, 2), effects, noise=0.003)
    search = Search(bench.dimensions, bench, Goal(budget_s=budget_s))
    search.run()
    fastest, former = search.best, next(c for c in search.candidates if c.title == "toggle0=b")
    search.best, search.is_complete = former, False  # as after a search without enough time
    verdicts = Verdicts(search)
    verdicts.run()
    assert verdicts.best is search.best is fastest and verdicts.runner_up is former
    judged = {(e.contrast.kind, e.contrast.name): e for e in verdicts.effects}
    total = judged[GAIN, "best against start"].judgement
    assert total.verdict == "FASTER" and total.low < math.exp(-0.2) < total.high
    assert judged[RUNNER_UP, "best against toggle0=b"].judgement.verdict == "FASTER"
    without = {name: e for (kind, name), e in judged.items() if kind == WITHOUT}
    assert without.keys() == {"toggle0=b", "toggle1=b"}
    assert all(e.judgement is not None or "no time" in e.reason for e in without.values())


@pytest.mark.parametrize("is_right", [True, False])
def test_an_option_that_new_blocks_show_to_be_harmful_is_dropped_if_the_rest_is_right(is_right):
    """Predictions join options. The time of a search can end before an option raced alone."""
    wrong = frozenset() if is_right else frozenset([(1, "a")])
    effects = {(0, "b"): -0.3, (1, "b"): 0.05}
    bench = SimulatedBench(dimensions(2, 2), effects, wrong=wrong, noise=0.002)
    search = Search(bench.dimensions, bench, Goal(budget_s=100.0))
    search.best = search.candidate(("b", "b"))
    search.start.value = search.start.time = 0.0
    search.best.state, search.best.value, search.best.time = RACED, -0.25, -0.25
    assert all(search.build(c) is None for c in search.candidates) and search.check(search.best)
    verdicts = Verdicts(search)
    verdicts.run()
    judged = {(e.contrast.kind, e.contrast.name): e.judgement for e in verdicts.effects}
    gain = judged[GAIN, "best against start"]
    if not is_right:
        assert verdicts.best.title == "toggle0=b, toggle1=b"
        assert judged[WITHOUT, "toggle1=b"].verdict == "SLOWER"
        return
    assert verdicts.best is search.best and search.best.title == "toggle0=b"
    assert search.proposable(search.best) and search.best in verdicts.front()
    assert search.best.value == pytest.approx(-0.3, abs=0.01) and search.best.step_ms > 0
    assert verdicts.runner_up.title == "toggle0=b, toggle1=b"
    assert gain.verdict == "FASTER" and gain.low < math.exp(-0.3) < gain.high


def test_a_start_gives_way_to_a_runner_up_that_new_blocks_show_to_be_faster():
    bench = SimulatedBench(dimensions(2), {(0, "b"): -0.1}, noise=0.003)
    search = Search(bench.dimensions, bench, Goal(budget_s=60.0))
    search.run()
    search.best = search.start
    verdicts = Verdicts(search)
    verdicts.run()
    assert verdicts.best.title == "toggle0=b" and verdicts.runner_up is None
    assert [e.contrast.kind for e in verdicts.effects] == [GAIN]
    assert verdicts.gain().judgement.verdict == "FASTER"


@pytest.mark.parametrize("is_start_right", [True, False])
def test_a_best_candidate_that_fails_in_the_new_blocks_gives_way(is_start_right):
    class Failing(SimulatedBench):
        is_over = False

        def round(self, candidates):
            blocks = super().round(candidates)
            failed = Failure(OUT_OF_MEMORY, "Out of memory: 1.0 GiB more was needed.")
            bad = [c.number for c in candidates if self.is_over and c.point[0] == "b"]
            return blocks | dict.fromkeys(bad, failed)

    effects = {(0, "b"): -0.3, (1, "b"): 0.1}
    wrong = frozenset() if is_start_right else frozenset([(1, "a")])
    bench = Failing(dimensions(2, 2), effects, wrong=wrong, noise=0.003)
    search = Search(bench.dimensions, bench, Goal(budget_s=200.0))
    search.run()
    assert search.best.point[0] == "b"
    bench.is_over = True
    verdicts = Verdicts(search)
    verdicts.run()
    assert verdicts.best is not None and search.proposable(verdicts.best)
    assert verdicts.best.point == (("a", "a") if is_start_right else ("a", "b"))
    assert math.isnan(verdicts.payoff_steps())
