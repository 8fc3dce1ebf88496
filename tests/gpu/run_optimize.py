"""Compare an optimization with an exhaustive sweep of the same space, on a GPU or the CPU.

    python tests/gpu/run_optimize.py OUT --family hydra --workload train --budget 600
        [--preset base] [--toggle NAME=OPTION ...] [--include TOGGLE,...] [--rounds 12]
        [--model FIELD=VALUE ...] [--setting FIELD=VALUE ...] [--no-sweep]

The search runs first, with builds that nothing has warmed up. Then every configuration of the space
is built, and all that fit race in interleaved rounds. Writes ``optimize.json`` to OUT and prints
it: the result's step time over the optimum's, and the share of the sweep's time that was needed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workbench" / "runner"))

import numpy as np
import torch
from recording_wire import RecordingWire

from sessions.model import Configuration
from sessions.studies.optimization.search import Search
from sessions.studies.optimization.space import Candidate, Failure, Measurement
from sessions.studies.optimization.verdicts import Verdicts
from sessions.verdicts import verdict
from workbench import protocol
from workbench.runner.context import Rig
from workbench.runner.experiments.optimize import OptimizeRun


def prepared(options: argparse.Namespace, seed: int) -> tuple[Search, Verdicts]:
    """Return a search on this device, with nothing built yet."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    base = Configuration(
        family=options.family,
        preset=options.preset,
        workload=options.workload,
        model=numbers_of(options.model),
        settings=numbers_of(options.setting),
        toggles=dict(text.split("=", 1) for text in options.toggle),
    )
    command = protocol.Optimize(
        base=base,
        budget_s=options.budget,
        include=[name for name in options.include.split(",") if name],
        exclude=[name for name in options.exclude.split(",") if name],
        seed=seed,
    )
    return OptimizeRun(Rig(RecordingWire(), device), command).prepare()


def numbers_of(texts: list[str]) -> dict[str, int]:
    """Return whole numbers by name, of NAME=VALUE."""
    return {name: int(value) for name, value in (text.split("=", 1) for text in texts)}


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
    numbers = {
        "space": {d.name: list(d.options) for d in search.dimensions},
        "best": search.best.title,
        "complete": search.is_complete,
        "configurations": len(search.candidates),
        "search_s": searched_s,
        "total_s": time.perf_counter() - began,
        "seconds": search.seconds,
        "payoff_steps": verdicts.payoff_steps(),
        "effects": effects,
    }
    return numbers, search


def sweep(options: argparse.Namespace) -> tuple[list[Candidate], np.ndarray, float]:
    """Build every configuration, run rounds of all, and return log times (rounds, candidates)."""
    search, _ = prepared(options, seed=1)
    began = time.perf_counter()
    candidates = []
    for point in itertools.product(*(dimension.options for dimension in search.dimensions)):
        if search.bench.usable(point)[0] == point:
            candidate = search.candidate(point)
            if search.build(candidate) is None:
                candidates.append(candidate)
    logs = np.full((options.rounds, len(candidates)), math.nan)
    for number in range(options.rounds):
        blocks = search.bench.round(candidates)
        for column, candidate in enumerate(candidates):
            block = blocks.get(candidate.number)
            if isinstance(block, Measurement):
                logs[number, column] = math.log(block.median_ms)
            elif isinstance(block, Failure):
                print(candidate.title, block.reason, file=sys.stderr)
    return candidates, logs, time.perf_counter() - began


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
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--no-sweep", action="store_true")
    options = parser.parse_args()
    verdict.load()
    numbers, search = optimize(options)
    print(json.dumps(numbers, indent=1), flush=True)
    if not options.no_sweep:
        candidates, logs, sweep_s = sweep(options)
        means = np.nanmean(logs - np.nanmean(logs, axis=1, keepdims=True), axis=0)
        order = np.argsort(means)
        column = [candidate.point for candidate in candidates].index(search.best.point)
        above = logs[:, column] - logs[:, order[0]]
        error = np.nanstd(above) / math.sqrt(np.isfinite(above).sum())
        numbers |= {
            "sweep_points": len(candidates),
            "sweep_s": sweep_s,
            "optimum": candidates[order[0]].title,
            "result_over_optimum": [float(np.exp(np.nanmean(above))), float(error)],
            "share_of_sweep": numbers["total_s"] / sweep_s,
            "fastest": [[candidates[n].title, math.exp(means[n] - means[order[0]])]
                        for n in order[:8]],
        }  # fmt: skip
        print(json.dumps(numbers, indent=1))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "optimize.json").write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
