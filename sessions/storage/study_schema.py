"""Every column of a study's tables: its unit and its meaning, by kind of study and table.

The HDF5 file's ``units`` and ``description`` attributes come from here.
"""

from __future__ import annotations

from sessions.model import (
    ATTRIBUTION,
    CHECKLIST,
    CLAIMS,
    OPTIMIZATION,
    PROFILE,
    SCALING,
    SWEEP,
    Study,
)
from sessions.schema import COUNT, EITHER, NUMBER, TEXT, ColumnInfo


def _column(text: str, unit: str = "") -> ColumnInfo:
    return ColumnInfo(NUMBER, unit, text)


def _count(text: str) -> ColumnInfo:
    return ColumnInfo(COUNT, "", text)


def _text(text: str) -> ColumnInfo:
    return ColumnInfo(TEXT, "", text)


def _either(text: str) -> ColumnInfo:
    return ColumnInfo(EITHER, "", text)


def _interval(of: str, unit: str = "") -> dict[str, ColumnInfo]:
    return {
        "low": _column(f"lower end of the 95 % interval of {of}, NaN where there is none", unit),
        "high": _column(f"upper end of the 95 % interval of {of}, NaN where there is none", unit),
    }


_ARM = _count("number of the arm, counted from 0")
_Y = _either("value of the second field that varied")
_PEAK = _column("highest memory in the timed steps, NaN where it is not known", "bytes")
_SECOND = "over the first arm's step time"

_ATTRIBUTION = {
    "arms": {
        "arm": _ARM,
        "title": _text("displayed title of the arm"),
        "on": _text("positions, in the request, of the toggles that are on, separated by spaces"),
        "state": _text("measured, blocked, out of memory, not built or failed"),
        "reason": _text("why it is not measured, empty where it is"),
        "step_ms": _column("typical step time", "ms"),
        "rounds": _count("rounds that count"),
        "ratio": _column(f"step time {_SECOND}"),
        **_interval("the ratio"),
        "peak_bytes": _PEAK,
        "wrong": _column("1 where its numbers are wrong, 0 where right, NaN where not checked"),
        "mse": _column("mean squared error of the outputs against the reference"),
        "max_error": _column("largest absolute error of an output against the reference"),
        "numerics": _text("result of the numerical check, as a sentence"),
        "evidence": _text("whether each toggle took effect, and the evidence"),
        "path": _text("what computed its experts, and the ranks of its heads; empty if none"),
    },
    "effects": {
        "quantity": _text("what the ratio is of: time, or memory"),
        "kind": _text("step, without, share, interaction or total"),
        "name": _text("toggle, or toggles, with the option"),
        "ratio": _column("value with the effect divided by value without it: 0.8 is 20 % less"),
        **_interval("the ratio"),
        "p": _column("p value of no practical effect, adjusted by Holm"),
        "rounds": _column("rounds that count"),
        "verdict": _text("FASTER, SLOWER, SAME or UNDECIDED, corrected by Holm among all effects"),
        "reason": _text("why the verdict is undecided or missing"),
    },
    "blocks": {
        "round": _column("number of the round: every arm once, in random order"),
        "arm": _ARM,
        "median_ms": _column("median step time of the block", "ms"),
        "clock_mhz": _column("clock of the multiprocessors, NaN where unknown", "MHz"),
        "mean_ms": _column("mean step time of the block, NaN where unknown", "ms"),
        "void": _text("why the block does not count, empty where it does"),
    },
    "blocked": {
        "toggle": _text("toggle whose effect cannot be measured here"),
        "reason": _text("why it cannot be measured"),
    },
}

_OPTIMIZATION = {
    "candidates": {
        "candidate": _count("number of the configuration, counted from 0, the start"),
        "title": _text("options that differ from the start's"),
        "role": _text("start, best, runner-up or empty"),
        "state": _text("raced, not tried, no effect, over the memory limit, out of memory, failed"),
        "reason": _text("why it is not measured, or cannot be proposed"),
        "front": _column("1 where it is on the Pareto front of time, memory, error and energy"),
        "predicted": _column("step time over the start's by the roofline, NaN where not known"),
        "estimate": _column("step time over the start's, estimated while it was searched"),
        "against": _column("number of the configuration that it raced against last"),
        "rounds": _count("rounds of that race that count"),
        "ratio": _column("step time over that configuration's"),
        "low": _column("lower end of the ratio's interval at 99 %, NaN where there is none"),
        "high": _column("upper end of the ratio's interval at 99 %, NaN where there is none"),
        "step_ms": _column("step time by the estimate", "ms"),
        "peak_bytes": _PEAK,
        "joules": _column("energy of a step, NaN where no counter exists", "J"),
        "build_s": _column("time of the first build, with compilation and warm-up", "s"),
        "wrong": _column("1 where its numbers are wrong, 0 where right, NaN where not checked"),
        "max_error": _column("largest absolute error of an output against the reference"),
        "numerics": _text("result of the numerical check, as a sentence"),
        "evidence": _text("whether each toggle took effect, and the evidence"),
    },
    "options": {
        "toggle": _text("toggle that was searched"),
        "option": _text("its option"),
        "state": _text("in the result, tried, not tried, blocked, or why it was not measured"),
        "tried": _count("configurations with it that were measured"),
        "estimate": _column("its effect on step time, estimated while it was searched"),
        "reason": _text("why it was not measured"),
    },
    "effects": {
        **_ATTRIBUTION["effects"],
        "quantity": _text("what the ratio is of: time, memory or energy"),
        "kind": _text("total (best against start), runner-up, or without (one change)"),
    },
    "blocks": {
        "phase": _text("search or verdicts"),
        "round": _count("number of the round in its phase"),
        "candidate": _count("number of the configuration"),
        "median_ms": _column("median step time of the block", "ms"),
        "clock_mhz": _column("clock of the multiprocessors, NaN where unknown", "MHz"),
        "mean_ms": _column("mean step time of the block, NaN where unknown", "ms"),
        "joules": _column("energy of a step, NaN where no counter exists", "J"),
        "void": _text("why the block does not count, empty where it does"),
    },
}

_SWEEP = {
    "points": {
        "x": _either("value of the first field that varied"),
        "y": _Y,
        "arm": _ARM,
        "outcome": _text("measured, out of memory, refused, failed or void"),
        "reason": _text("why it is not measured, empty where it is"),
        "median_ms": _column("geometric mean of the medians of its blocks of steps", "ms"),
        "low_ms": _column("lower end of the 95 % interval of median_ms within this point", "ms"),
        "high_ms": _column("upper end of the 95 % interval of median_ms within this point", "ms"),
        "error": _column("standard error of the natural logarithm of median_ms"),
        "tokens_per_s": _column("tokens of a step over median_ms", "1/s"),
        "peak_bytes": _PEAK,
        "blocks": _count("blocks of steps"),
    },
    "fits": {
        "arm": _ARM,
        "y": _Y,
        "part": _text("which points: all, or the longer half"),
        "n": _count("points that were fitted"),
        "exponent": _column("b of the fit median_ms = factor * x ** b"),
        **_interval("the exponent"),
        "factor": _column("median_ms that the fit gives at x = 1", "ms"),
        "scatter": _column("relative distance of the points from the fit, beyond their noise"),
        "reason": _text("why there is no exponent or interval, empty if there are both"),
    },
    "numbers": {
        "arm": _ARM,
        "x": _either("value of the first field at which the numbers were checked"),
        "y": _either("value of the second field at which the numbers were checked"),
        "right": _column("1 where the numbers are right, 0 where wrong, NaN where not checked"),
        "text": _text("result of the check, as a sentence"),
    },
}

_PROFILE = {
    "kernels": {
        "name": _text("kernel; on the CPU operator"),
        "module": _text("module of the model that it ran for"),
        "phase": _text(
            "forward, backward, recompute, optimizer, replay, input, or step (all else)"
        ),
        "kind": _text("operator class"),
        "operator": _text("operator of the kernel library that called it, or empty"),
        "calls": _column("calls in one step"),
        "us": _column("time on the device in one step", "us"),
    },
    "least": {
        "name": _text("operator of the kernel library, or the class of all others"),
        "calls": _column("calls in one step"),
        "bytes": _column("read and written in one step, at least", "bytes"),
        "flops": _column("floating-point operations in one step"),
        "us": _column("least time in one step at the measured ceilings", "us"),
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
        "role": _text("what the memory is for, as in the columns of memory"),
        "bytes": _column("memory of this role when the total is at its peak", "bytes"),
        "estimate": _column("estimate from the model's sizes, NaN where there is none", "bytes"),
    },
    "gaps": {
        "module": _text("module whose kernel followed the wait"),
        "count": _column("waits in one step"),
        "us": _column("time that the GPU waited in one step", "us"),
    },
}

_PROFILE |= {
    "timeline": {
        "track": _count("row of tracks: the track of the slice"),
        "depth": _count("number of slices of its track that contain it"),
        "name": _count("row of labels: its name"),
        "module": _count("row of labels: the module that it ran for"),
        "t_us": _column("start, since the first stored step", "us"),
        "us": _column("duration", "us"),
        "launch": _count("row of this table that launched it, counted from 1; 0: not stored"),
    },
    "labels": {
        "text": _text("name of a kernel, operator or module"),
        "kind": _text("operator class, empty for a module"),
    },
    "tracks": {
        "title": _text("a thread of the host, its launches, or a stream of the GPU"),
        "kind": _text("steps, host, launches or stream"),
    },
}

_CHECKLIST = {
    "checks": {
        "check": _text("numerics, syncs, graph, memory, speedup or batches"),
        "status": _text("pass, fail, undecided, not applicable or not checked"),
        "evidence": _text("evidence for the status"),
    },
    "lines": {
        "check": _text("check that found it"),
        "line": _text("source line"),
    },
}

_CLAIMS = {
    "claims": {
        "document": _text("model family of the document"),
        "experiment": _text("experiment that measures it"),
        "row": _text("requirement that it belongs to"),
        "claim": _text("what is claimed"),
        "says": _text("the number in the document's words"),
        "unit": _text("unit of least, most, measured, low and high"),
        "least": _column("lower bound that the document sets, NaN where none"),
        "most": _column("upper bound that the document sets, NaN where none"),
        "measured": _column("what was measured, NaN where nothing was"),
        **_interval("measured"),
        "result": _text("holds, does not hold, undecided, not measured, not applicable here ..."),
        "reason": _text("reason for the result"),
        "how": _text("how it is measured"),
        "rounds": _column("rounds that the interval is computed from, NaN where there are none"),
    }
}

_SCALING = {
    "efficiencies": {
        "kind": _text("kind of parallelism, or one device (the baseline)"),
        "count": _count("number of ranks"),
        "outcome": _text("measured, out of memory, refused or failed"),
        "reason": _text("why it is not measured, or a note; may be empty"),
        "ratio": _column("step time over one device's"),
        "ratio_low": _column("lower end of the 95 % interval of ratio"),
        "ratio_high": _column("upper end of the 95 % interval of ratio"),
        "verdict": _text("FASTER, SLOWER, SAME or UNDECIDED, corrected for their number"),
        "pairs": _count("pairs of blocks that count"),
        "efficiency": _column("strong: t1 / (n tn); weak: t1 / tn; 1 is ideal"),
        **_interval("efficiency"),
        "step_ms": _column("median of the medians of its blocks", "ms"),
        "exposed_ms": _column(
            "time of a profiled step in collectives while the rank computes nothing, median of "
            "the ranks, NaN where not measured", "ms"),
        "communication_ms": _column(
            "time of a profiled step in collectives, median of the ranks, NaN where not measured",
            "ms"),
        "skew_ms": _column(
            "extra computing time of the slowest rank over the median rank in a profiled step, "
            "NaN where not measured", "ms"),
        "peak_bytes": _column("memory of the rank that needs the most, NaN where unknown", "bytes"),
        "wrong": _column("1 where its numbers are wrong, 0 where right, NaN where not checked"),
        "numerics": _text("result of the numerical check, as a sentence"),
    },
    "ranks": {
        "kind": _text("kind of parallelism"),
        "count": _count("number of ranks"),
        "rank": _count("rank, counted from 0"),
        "host": _text("its host, empty where unknown"),
        "step_ms": _column("time of a step under the profiler, NaN where not measured", "ms"),
        "computing_ms": _column("time in which it computed, with or without communication", "ms"),
        "waiting_ms": _column("time in collectives without computing", "ms"),
        "idle_ms": _column("time without computing and without collectives", "ms"),
        "communication_ms": _column("time in collectives, overlapped or not", "ms"),
        "peak_bytes": _column("highest memory in steps, NaN where unknown", "bytes"),
    },
}  # fmt: skip

# Columns by ``Study.kind``, then by table.
STUDIES = {
    ATTRIBUTION: _ATTRIBUTION,
    OPTIMIZATION: _OPTIMIZATION,
    SWEEP: _SWEEP,
    SCALING: _SCALING,
    PROFILE: _PROFILE,
    CHECKLIST: _CHECKLIST,
    CLAIMS: _CLAIMS,
}


def columns_of(kind: str, table: str) -> dict[str, ColumnInfo]:
    """Return the known columns of a table; none for a kind of another version."""
    return STUDIES.get(kind, {}).get(table, {})


TIMELINE = ("timeline", "labels", "tracks")  # tables of a profile that make its timeline


def has_timeline(study: Study) -> bool:
    """Return whether the study has all tables of a timeline; an older profile has none."""
    return all(study.tables.get(name) for name in TIMELINE)
