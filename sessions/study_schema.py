"""Every column of a study's tables: its unit and what it means, by kind of study and table.

The HDF5 file's ``units`` and ``description`` attributes come from here; what a kind of study finds
is said where it is made.
"""

from __future__ import annotations

from sessions.schema import ColumnInfo


def _column(text: str, unit: str = "") -> ColumnInfo:
    return ColumnInfo("", unit, text)  # stored as it is


def _interval(of: str, unit: str = "") -> dict[str, ColumnInfo]:
    return {
        "low": _column(f"lower end of the 95 % interval of {of}, NaN where there is none", unit),
        "high": _column(f"upper end of the 95 % interval of {of}, NaN where there is none", unit),
    }


_ARM = _column("number of the arm, counted from 0")
_Y = _column("value of the second field that varied")
_PEAK = _column("highest memory in the timed steps, NaN where it is not known", "bytes")
_SECOND = "over the first arm's step time"

_ATTRIBUTION = {
    "arms": {
        "arm": _ARM,
        "title": _column("what people call the arm"),
        "on": _column("places, in what was asked for, of the toggles that are on, between spaces"),
        "state": _column("measured, blocked, out of memory, not built or failed"),
        "reason": _column("why it is not measured, empty where it is"),
        "step_ms": _column("typical step time", "ms"),
        "rounds": _column("rounds that count"),
        "ratio": _column(f"step time {_SECOND}"),
        **_interval("the ratio"),
        "peak_bytes": _PEAK,
        "wrong": _column("1 where its numbers are wrong, 0 where right, NaN where not checked"),
        "mse": _column("mean squared error of the outputs against the reference"),
        "max_error": _column("largest absolute error of an output against the reference"),
        "numerics": _column("what the check of its numbers found, in words"),
        "evidence": _column("whether each toggle took effect, and how one can tell"),
    },
    "effects": {
        "quantity": _column("what the ratio is of: time, or memory"),
        "kind": _column("step, without, share, interaction or total"),
        "name": _column("toggle, or toggles, with the option"),
        "ratio": _column("with the effect over without it: 0.8 is 20 % less"),
        **_interval("the ratio"),
        "p": _column("p value of the effect being none in practice, adjusted by Holm"),
        "rounds": _column("rounds that count"),
        "verdict": _column(
            "FASTER, SLOWER, SAME or UNDECIDED, corrected by Holm among all effects"
        ),
        "reason": _column("why the verdict is no clearer one, or there is none"),
    },
    "blocks": {
        "round": _column("number of the round: every arm once, in random order"),
        "arm": _ARM,
        "median_ms": _column("median step time of the block", "ms"),
        "clock_mhz": _column("clock of the multiprocessors, NaN where unknown", "MHz"),
        "mean_ms": _column("mean step time of the block, NaN where unknown", "ms"),
        "void": _column("why the block does not count, empty where it does"),
    },
    "blocked": {
        "toggle": _column("toggle that cannot be attributed here"),
        "reason": _column("why it cannot"),
    },
}

_SWEEP = {
    "points": {
        "x": _column("value of the first field that varied"),
        "y": _Y,
        "arm": _ARM,
        "outcome": _column("measured, out of memory, refused, failed or void"),
        "reason": _column("why it is not measured, empty where it is"),
        "median_ms": _column("geometric mean of the medians of its blocks of steps", "ms"),
        "low_ms": _column("lower end of the 95 % interval of median_ms within this point", "ms"),
        "high_ms": _column("upper end of the 95 % interval of median_ms within this point", "ms"),
        "error": _column("standard error of the natural logarithm of median_ms"),
        "tokens_per_s": _column("tokens of a step over median_ms", "1/s"),
        "peak_bytes": _PEAK,
        "blocks": _column("blocks of steps"),
    },
    "fits": {
        "arm": _ARM,
        "y": _Y,
        "part": _column("which points: all, or the longer half"),
        "n": _column("points that were fitted"),
        "exponent": _column("b of the fit median_ms = factor * x ** b"),
        **_interval("the exponent"),
        "factor": _column("median_ms that the fit gives at x = 1", "ms"),
        "scatter": _column("by what share the points lie off the fit beyond their noise"),
        "reason": _column("why there is no exponent or interval, empty where there are"),
    },
    "numbers": {
        "arm": _ARM,
        "x": _column("value of the first field, where each was checked"),
        "y": _column("value of the second field, where each was checked"),
        "right": _column("1 where the numbers are right, 0 where wrong, NaN where nobody knows"),
        "text": _column("what the check found, in words"),
    },
}

_PROFILE = {
    "kernels": {
        "name": _column("kernel; on the CPU operator"),
        "module": _column("module of the model that it ran for"),
        "phase": _column("forward, backward, recompute, optimizer or replay"),
        "kind": _column("operator class"),
        "operator": _column("operator of the kernel library that called it, or empty"),
        "calls": _column("calls in one step"),
        "us": _column("time on the device in one step", "us"),
    },
    "least": {
        "name": _column("operator of the kernel library, or the class of all others"),
        "calls": _column("calls in one step"),
        "bytes": _column("read and written in one step, at least", "bytes"),
        "flops": _column("floating-point operations in one step"),
        "us": _column("time of one step that this needs at the measured ceilings", "us"),
    },
    "memory": {
        "t_ms": _column("time since the step began", "ms"),
        "parameters": _column("weights and buffers of the model", "bytes"),
        "gradients": _column("gradients of the weights", "bytes"),
        "optimizer": _column("state of the optimizer", "bytes"),
        "activations": _column("tensors kept for the backward pass", "bytes"),
        "workspace": _column("scratch space and temporaries", "bytes"),
        "other": _column("inputs, caches, other configurations", "bytes"),
        "private_pools": _column("private pools of CUDA graphs", "bytes"),
        "reserved": _column("held by the caching allocator", "bytes"),
    },
    "peak": {
        "role": _column("what the memory is for, as in the columns of memory"),
        "bytes": _column("allocated for it at the moment at which most was", "bytes"),
        "estimate": _column("the same from the model's sizes, NaN where there is none", "bytes"),
    },
    "gaps": {
        "module": _column("module whose kernel came next"),
        "count": _column("waits in one step"),
        "us": _column("time that the GPU waited in one step", "us"),
    },
}

_CHECKLIST = {
    "checks": {
        "check": _column("numerics, syncs, graph, memory, speedup or batches"),
        "status": _column("pass, fail, undecided, not applicable or not checked"),
        "evidence": _column("how one can tell"),
    },
    "lines": {
        "check": _column("check that found it"),
        "line": _column("line of source"),
    },
}

_CLAIMS = {
    "claims": {
        "document": _column("family whose document claims it"),
        "experiment": _column("what measures it"),
        "row": _column("requirement that it belongs to"),
        "claim": _column("what is claimed"),
        "says": _column("the number in the document's words"),
        "unit": _column("unit of least, most, measured, low and high"),
        "least": _column("lower bound that the document sets, NaN where none"),
        "most": _column("upper bound that the document sets, NaN where none"),
        "measured": _column("what was measured, NaN where nothing was"),
        **_interval("measured"),
        "result": _column("holds, does not hold, undecided, not measured, not applicable here ..."),
        "reason": _column("what there is to say of the result"),
        "how": _column("how it is measured"),
        "rounds": _column("rounds that the interval comes of, NaN where there were none"),
    }
}

# By Study.kind, then by table.
STUDIES = {
    "attribution": _ATTRIBUTION,
    "sweep": _SWEEP,
    "profile": _PROFILE,
    "checklist": _CHECKLIST,
    "claims": _CLAIMS,
}


def columns_of(kind: str, table: str) -> dict[str, ColumnInfo]:
    """What is known of a table's columns; nothing of a kind that another version makes."""
    return STUDIES.get(kind, {}).get(table, {})
