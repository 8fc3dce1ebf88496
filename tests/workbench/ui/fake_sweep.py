"""A sweep as a runner would tell it: the last arm grows with the square and outgrows the memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from fake_steps import GIB, FakeRun

from sessions.studies import sweep
from workbench import protocol


def swept(run: FakeRun, command: protocol.Sweep, index: int = 0) -> Iterator[protocol.AnyMessage]:
    """Every point in random order, each with a segment of its own."""
    rng = np.random.default_rng(command.seed)
    arms = command.arms or [{}]
    names = [", ".join(list(arm.values())[:2]) or "defaults" for arm in arms]
    sizes = list(itertools.product(*command.axes.values()))
    rng.shuffle(sizes)
    points = [(size, arm) for size in sizes for arm in range(len(arms))]
    values = {f"values_{index}": axis for index, axis in enumerate(command.axes.values())}
    yield protocol.StudyStarted(
        t_s=run.now,
        index=index,
        kind=sweep.KIND,
        title=f"hydra train over {' and '.join(command.axes)}",
        request={
            "fields": [*command.axes],
            **values,
            "arms": [*names],
            "toggles": ["{}"] * len(arms),
            "points": len(points),
            "order": "sizes in random order, and the arms of each size in random order",
        },
    )
    columns: dict[str, list] = {}
    for done, (size, arm) in enumerate(points):
        run.now += 0.4
        configuration = command.base
        yield run.begin(configuration, f"sequence {size[0]}: {names[arm]}")
        yield protocol.State(t_s=run.now, state="running", text=f"Measuring sequence {size[0]}")
        yield from run.steps(3)
        x, y = float(size[0]), float([*size, 8.0][1])
        ms = 1 + 0.002 * y * x ** (1 + 0.9 * (arm == len(arms) - 1)) / 100
        peak = GIB * y * x ** (1 + (arm == len(arms) - 1)) / 2**20
        fits = peak < 130 * GIB
        ms *= float(rng.normal(1, 0.02))
        row = {"x": x, **({"y": y} if len(size) > 1 else {}), "arm": arm, "blocks": 10 * fits}
        row |= {
            "outcome": sweep.MEASURED if fits else sweep.OUT_OF_MEMORY,
            "reason": "" if fits else "Out of memory: 41.2 GiB more was needed and 9.1 was free.",
            "median_ms": ms if fits else None,
            "low_ms": 0.97 * ms if fits else None,
            "high_ms": 1.03 * ms if fits else None,
            "error": 0.014 if fits else None,
            "tokens_per_s": 8e3 * x / ms if fits else None,
            "peak_bytes": peak if fits else None,
        }
        for name, cell in row.items():
            columns.setdefault(name, []).append(cell)
        added = {name: [cell] for name, cell in row.items()}
        yield protocol.StudyRows(t_s=run.now, study=index, table=sweep.POINTS, columns=added)
        fitted = sweep.fits(columns)
        yield protocol.StudyRows(
            t_s=run.now, study=index, table=sweep.FITS, columns=fitted, replace=True
        )
        yield protocol.Progress(
            t_s=run.now, task="sweep", fraction=(done + 1) / len(points), text=f"{done + 1}"
        )
    yield protocol.StudyFacts(t_s=run.now, study=index, facts={"final": True})
