"""After how many steps a longer build of the best configuration pays off."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
from simulated_bench import SimulatedBench, dimensions

from sessions.studies.optimization.search import Search
from sessions.studies.optimization.space import Goal
from sessions.studies.optimization.verdicts import Verdicts, payoff_steps


@pytest.mark.parametrize(
    ("extra_s", "ratio", "steps"),
    [(10.0, 0.5, 200), (10.0, 1.0, math.inf), (10.0, 1.5, math.inf), (-1.0, 0.5, 0)],
)
def test_a_longer_build_pays_off_after_the_steps_that_save_as_much(extra_s, ratio, steps):
    assert payoff_steps(extra_s, 100.0, ratio) == steps
    assert math.isnan(payoff_steps(-1.0, 100.0, 1.5)), "nothing is saved, and nothing was spent"
    assert math.isnan(payoff_steps(math.nan, 100.0, 0.5))


def test_a_build_pays_off_only_where_a_verdict_says_that_steps_are_faster():
    space = dimensions(2)
    bench = SimulatedBench(space, {}, noise=0.02, builds_s={(0, "b"): 30.0}, build_s=2.0)
    search = Search(space, bench, Goal(budget_s=300.0))
    search.run()
    search.best = search.candidates[1]
    verdicts = Verdicts(search)
    verdicts.run()
    effect = verdicts.gain()
    slightly = msgspec.structs.replace(effect.judgement, ratio=0.999, verdict="SAME")
    verdicts.effects = [dataclasses.replace(effect, judgement=slightly)]
    assert math.isnan(verdicts.payoff_steps())
    steps = []
    for high in (0.9, 0.95):  # the least that is saved by the interval
        faster = msgspec.structs.replace(slightly, ratio=0.8, high=high, verdict="FASTER")
        verdicts.effects = [dataclasses.replace(effect, judgement=faster)]
        steps.append(verdicts.payoff_steps())
    assert steps[1] == pytest.approx(2 * steps[0], abs=2) and steps[0] > 0


def test_what_others_compiled_counts_for_the_build_and_what_the_start_loads_does_not():
    """The start loads libraries, two others compile, and the best one finds all in caches."""
    space = dimensions(2, 2)
    search = Search(space, SimulatedBench(space, {(0, "b"): -0.2, (1, "b"): -0.1}), Goal())
    verdicts = Verdicts(search)
    for point, build_s in (("aa", 30.0), ("ba", 6.0), ("ab", 8.0), ("bb", 2.0)):
        search.candidate(tuple(point)).build_s = build_s
    search.best = search.candidate(("b", "b"))
    assert verdicts._longer_s() == (6.0 - 2.0) + (8.0 - 2.0)
    search.best = search.candidate(("b", "a"))
    assert verdicts._longer_s() == 6.0 - 2.0
    search.best.build_s = math.nan  # it failed, and may have compiled for the next ones
    search.best = search.candidate(("b", "b"))
    assert math.isnan(verdicts._longer_s())
