"""A study of scaling over ranks, as a runner sends it: two kinds on two and four ranks."""

from __future__ import annotations

import math

from sessions.model import Study
from sessions.schema import TEXT
from sessions.storage.study_schema import columns_of
from sessions.studies.rank_scaling import KIND, ONE_DEVICE, POINTS, RANKS, efficiency, skew_ms
from sessions.studies.sweep import MEASURED, REFUSED
from workbench import protocol
from workbench.client.recorder import Recorder

KINDS = {"data": 1.06, "fsdp": 1.2}  # step time of n ranks over the ideal
ONE_MS = 80.0
GIB = 2.0**30
Row = dict[str, float | str | None]


def row(kind: str, count: int, **values: float | str) -> Row:
    """Return a row of efficiencies in which everything else is unknown."""
    blank = {
        name: "" if info.dtype == TEXT else math.nan
        for name, info in columns_of(KIND, POINTS).items()
    }
    return {**blank, "pairs": 0.0, "kind": kind, "count": float(count), **values}


def rows(mode: str, wrong: bool) -> tuple[list[Row], list[Row]]:
    """Return the rows of both tables."""
    share = {"strong": lambda n: 1 / n, "weak": lambda n: 1.0}[mode]
    points = [row(ONE_DEVICE, 1, outcome=MEASURED, ratio=1.0, efficiency=1.0, step_ms=ONE_MS,
                  peak_bytes=30 * GIB, wrong=0.0)]  # fmt: skip
    ranks: list[Row] = []
    for count in (2, 4):
        for kind, cost in KINDS.items():
            ratio = share(count) * (cost + 0.01 * count)
            estimate = efficiency(mode, count, ratio, 0.98 * ratio, 1.02 * ratio)
            computing = [ONE_MS * share(count) * (1 + 0.02 * rank) for rank in range(count)]
            step_ms = ONE_MS * ratio
            points.append(
                row(
                    kind,
                    count,
                    outcome=MEASURED,
                    ratio=ratio,
                    ratio_low=0.98 * ratio,
                    ratio_high=1.02 * ratio,
                    verdict="FASTER" if mode == "strong" else "SLOWER",
                    pairs=12.0,
                    efficiency=estimate.value,
                    low=estimate.low,
                    high=estimate.high,
                    step_ms=step_ms,
                    exposed_ms=2.5,
                    communication_ms=9.0,
                    skew_ms=skew_ms(computing),
                    peak_bytes=30 * GIB / count,
                    wrong=float(wrong and kind == "fsdp"),
                    numerics="relative error 1e-7",
                )
            )
            ranks += [
                {
                    "kind": kind,
                    "count": float(count),
                    "rank": float(rank),
                    "host": "node-a" if rank < 2 else "node-b",
                    "step_ms": step_ms,
                    "computing_ms": time,
                    "waiting_ms": 0.5 * max(0.0, step_ms - time),
                    "idle_ms": 0.5 * max(0.0, step_ms - time),
                    "communication_ms": 9.0,
                    "peak_bytes": 30 * GIB / count,
                }
                for rank, time in enumerate(computing)
            ]
    points.append(row("data", 8, outcome=REFUSED, reason="needs 8 GPUs; this machine has 4"))
    return points, ranks


def messages(mode: str = "strong", wrong: bool = False) -> list[protocol.Message]:
    """Return what a runner sends of the study."""
    points, ranks = rows(mode, wrong)
    request = {
        "mode": mode,
        "batch": 32,
        "kinds": [*KINDS],
        "ranks": [1, 2, 4, 8],
        "base": "{}",
        "toggles": [],
        "region": 0.01,
    }
    tables = [
        protocol.StudyRows(
            study=0,
            table=table,
            columns={name: [row[name] for row in table_rows] for name in table_rows[0]},
            replace=True,
        )
        for table, table_rows in ((POINTS, points), (RANKS, ranks))
    ]
    return [
        protocol.StudyStarted(
            index=0, kind=KIND, title=f"hydra base: {mode} scaling", request=request
        ),
        protocol.StudyFacts(study=0, facts={"memory": "peak memory"}),
        *tables,
    ]


def study(mode: str = "strong", wrong: bool = False) -> Study:
    """Return the study that a session keeps of it."""
    recorder = Recorder()
    for message in messages(mode, wrong):
        recorder.record(message)
    return recorder.session.studies[0]
