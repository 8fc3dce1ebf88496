"""Compare an optimization with an exhaustive sweep of the same space, on a GPU or the CPU.

    python tests/gpu/run_optimize.py OUT --family hydra --workload train --budget 600
        [--preset base] [--toggle NAME=OPTION ...] [--include TOGGLE,...] [--rounds 4]
        [--model FIELD=VALUE ...] [--setting FIELD=VALUE ...] [--no-sweep] [--sweep-limit 400]

``--family hf:CONFIG`` takes a Hugging Face configuration. The search runs first, with builds that
nothing has warmed up. Then every configuration of the space is built and races with the search's
result: first those that differ in one toggle, then the others, both in random order. Those that are
at most 5 % slower race once more, the fastest by the median round first: a round that other work
disturbs would make a mean too small or too large. Writes ``optimize.json`` to OUT after each part,
and prints it: the step time of the best other configuration over the result's, and the share of the
sweep's time that the search needed. A sweep that reaches its limit says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import operator
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workbench" / "runner"))

import numpy as np
import torch
from recording_wire import RecordingWire

from sessions.model import HF, OWN, Configuration, Scalar
from sessions.studies.optimization.bench import Bench
from sessions.studies.optimization.search import Search
from sessions.studies.optimization.space import Candidate, Failure, Measurement, Point
from sessions.studies.optimization.verdicts import Verdicts
from sessions.verdicts import verdict
from workbench import protocol
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.optimize import OptimizeRun

FINALISTS, FINAL_ROUNDS = 12, 12
NEAR = 1.05  # of the result's step time, up to which a configuration races once more


def prepared(options: argparse.Namespace, seed: int) -> tuple[Search, Verdicts]:
    """Return a search on this device, with nothing built yet."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    family, model = options.family, values_of(options.model)
    if family.startswith(HF):
        family, model = OWN, model | {"source": family}
    base = Configuration(
        family=family,
        preset=options.preset,
        workload=options.workload,
        model=model,
        settings=values_of(options.setting),
        toggles=dict(text.split("=", 1) for text in options.toggle),
    )
    command = protocol.Optimize(
        base=base,
        budget_s=options.budget,
        include=[name for name in options.include.split(",") if name],
        exclude=[name for name in options.exclude.split(",") if name],
        seed=seed,
    )
    return OptimizeRun(RunnerContext(RecordingWire(), device), command).prepare()


def values_of(texts: list[str]) -> dict[str, Scalar]:
    """Return whole numbers and texts by name, of NAME=VALUE."""
    pairs = (text.split("=", 1) for text in texts)
    return {name: int(value) if value.isdecimal() else value for name, value in pairs}


def optimize(options: argparse.Namespace) -> tuple[dict, Search]:
    """Search, judge, and return the numbers."""
    began = time.perf_counter()
    search, verdicts = prepared(options, seed=0)
    search.run()
    searched_s = time.perf_counter() - began
    verdicts.run()
    effects = {
        f"{effect.contrast.kind}: {effect.contrast.name}": (
            effect.reason
            if effect.judgement is None
            else [effect.judgement.verdict, effect.judgement.ratio, effect.judgement.low,
                  effect.judgement.high]
        )
        for effect in verdicts.effects
    }  # fmt: skip
    numbers: dict[str, Any] = {
        "space": {d.name: list(d.options) for d in search.dimensions},
        "best": search.best.title,
        "complete": search.is_complete,
        "candidates": [
            [candidate.title, candidate.state, candidate.reason, candidate.step_ms,
             candidate.build_s, candidate.numerics.text if candidate.numerics else ""]
            for candidate in search.candidates
        ],
        "refused": list(search.knowledge.refused.values()),
        "search_s": searched_s,
        "total_s": time.perf_counter() - began,
        "seconds": search.plan.seconds,
        "payoff_steps": verdicts.payoff_steps(),
        "effects": effects,
    }  # fmt: skip
    return numbers, search


def sweep(options: argparse.Namespace, result: Point) -> Iterator[dict[str, Any]]:
    """Race every configuration of the space with the search's result, and yield the numbers so far.

    The fastest ones race again, in new rounds: the smallest of many measured ratios is too small.
    """
    search, _ = prepared(options, seed=1)
    bench, began = search.bench, time.perf_counter()
    best = search.candidate(result)
    assert search.build(best) is None, "the search's result was built before"
    logs: dict[str, float] = {}
    candidates: dict[str, Candidate] = {}
    points = list(itertools.product(*(dimension.options for dimension in search.dimensions)))
    random.Random(0).shuffle(points)
    points.sort(key=lambda point: sum(map(operator.ne, point, result)) > 1)
    points = [point for point in points if point != result and bench.usable(point)[0] == point]
    reached = 0
    for point in points:
        if time.perf_counter() - began > options.sweep_limit:
            print("the sweep reached its limit", file=sys.stderr)
            break
        reached += 1
        candidate = search.candidate(point)
        if search.build(candidate) is None:
            raced = race(bench, candidate, best, options.rounds)
            if raced.size:
                logs[candidate.title] = float(np.median(raced))
                candidates[candidate.title] = candidate
        bench.release(candidate)
    order = sorted(logs, key=logs.__getitem__)
    numbers: dict[str, Any] = {
        "sweep_space": len(points) + 1,
        "sweep_reached": reached + 1,
        "sweep_points": len(logs) + 1,
        "sweep_s": time.perf_counter() - began,
        "fastest": {title: math.exp(logs[title]) for title in order},
        "finals": {},
    }
    yield numbers
    for title in [title for title in order if logs[title] < math.log(NEAR)][:FINALISTS]:
        if search.build(candidates[title]) is None:
            raced = race(bench, candidates[title], best, FINAL_ROUNDS)
            error = raced.std(ddof=1) / math.sqrt(raced.size)
            numbers["finals"][title] = [float(np.exp(raced.mean())), float(error)]
            yield numbers


def race(bench: Bench, candidate: Candidate, best: Candidate, rounds: int) -> np.ndarray:
    """Return the log ratios of a candidate's step time to the best one's, one for each round."""
    logs = []
    for _ in range(rounds):
        blocks = bench.round([candidate, best])
        own, other = blocks.get(candidate.number), blocks.get(best.number)
        if isinstance(own, Measurement) and isinstance(other, Measurement):
            logs.append(math.log(own.median_ms / other.median_ms))
        elif isinstance(own, Failure):
            print(candidate.title, own.reason, file=sys.stderr)
            break
    return np.array(logs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", default="hydra")
    parser.add_argument("--preset", default="")
    parser.add_argument("--workload", default="train")
    parser.add_argument("--toggle", action="append", default=[])
    parser.add_argument("--model", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--setting", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--include", default="")
    parser.add_argument("--exclude", default="")
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sweep-limit", type=float, default=3600.0)
    parser.add_argument("--no-sweep", action="store_true")
    options = parser.parse_args()
    verdict.load()
    options.out.mkdir(parents=True, exist_ok=True)
    numbers, search = optimize(options)
    write(numbers, options.out)
    if not options.no_sweep:
        for part in sweep(options, search.best.point):
            numbers |= part
            numbers["share_of_sweep"] = numbers["total_s"] / numbers["sweep_s"]
            write(numbers, options.out)
    print(json.dumps(numbers, indent=1))


def write(numbers: dict[str, Any], out: Path) -> None:
    """Write what is measured so far."""
    (out / "optimize.json").write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
