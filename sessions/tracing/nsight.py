"""A profile from a report of Nsight Compute (.ncu-rep), read by NVIDIA's package ``ncu-report``.

Kernels are timed alone and replayed, so there is neither a timeline nor idle time. What a kernel
could attain is its time at the higher of the two utilizations that the report states for it (of
compute and of memory, ``*.avg.pct_of_peak_sustained_elapsed``): a share of the hardware's peak.
"""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sessions.errors import Lacking, SessionError
from sessions.model import Session, Study
from sessions.plain_text import one_line
from sessions.studies import breakdown
from sessions.tracing import kinds

MISSING = "Reading .ncu-rep files needs NVIDIA's package: pip install ncu-report"
MOST_KERNELS = 100_000
_TIME_NS = "gpu__time_duration.sum"
_BYTES = "dram__bytes.sum"
_UTILIZATIONS = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
)
_NOTE = "Nsight Compute times each kernel alone; calls are counted in the complete report."


def require() -> Any:
    """Return the module ``ncu_report``; raise ``Lacking`` with the command that installs it."""
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        raise Lacking(f"{MISSING}.") from None


def read(path: Path, title: str) -> Session:
    """Return a session with one profile; raise ``SessionError`` with a sentence about "it"."""
    module = require()
    try:
        context = module.load_report(str(path))
        kernels = [kernel for range_ in context for kernel in range_][: MOST_KERNELS + 1]
    except Exception as error:  # noqa: BLE001 - a library of another vendor raises types of its own
        raise SessionError(f"it cannot be read ({one_line(str(error), 200)})") from None
    if not kernels:
        raise SessionError("it has no kernels")
    if len(kernels) > MOST_KERNELS:
        raise SessionError(f"it has more than {MOST_KERNELS:,} kernels")
    return Session(
        title=title,
        environment={"device": "unknown", "source": "Nsight Compute report"},
        studies=[_study(kernels, title)],
    )


def _study(kernels: list[Any], title: str) -> Study:
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for kernel in kernels:
        us = _number(kernel, _TIME_NS) / 1e3
        if not us > 0:
            continue
        shares = [_number(kernel, name) / 100 for name in _UTILIZATIONS]
        share = max((share_ for share_ in shares if math.isfinite(share_)), default=math.nan)
        row = rows[str(kernel.name())]
        row[0] += 1
        row[1] += us
        row[2] += us * min(share, 1.0)
        row[3] += float(np.nan_to_num(_number(kernel, _BYTES)))
    if not rows:
        raise SessionError(f"its kernels have no times: collect the metric {_TIME_NS}")
    names = np.array(list(rows), object)
    count, us, least, moved = np.array(list(rows.values())).T
    blank = np.full(len(names), "", object)
    table = {
        "name": names,
        "module": np.full(len(names), breakdown.UNKNOWN, object),
        "phase": np.full(len(names), "forward", object),
        "kind": np.array([kinds.kind_of(str(name)) for name in names], object),
        "operator": names,
        "calls": count,
        "us": us,
    }
    known = np.isfinite(least)
    tables: dict[str, Mapping[str, np.ndarray]] = {"kernels": table}
    if known.any():
        flops = np.zeros(int(known.sum()))
        tables["least"] = {"name": names[known], "calls": count[known], "bytes": moved[known],
                           "flops": flops, "us": least[known]}  # fmt: skip
    else:
        table["operator"] = blank
    return Study(
        kind=breakdown.KIND,
        title=title,
        start_s=0.0,
        request={"device": "cuda", "label": title, "steps": 1},
        facts={"notes": [_NOTE]},
        tables=tables,
    )


def _number(kernel: Any, name: str) -> float:
    """Return a metric of a kernel, NaN if the report lacks it."""
    try:
        metric = kernel.metric_by_name(name)
        return math.nan if metric is None else float(metric.as_double())
    except (KeyError, TypeError, ValueError, RuntimeError):
        return math.nan
