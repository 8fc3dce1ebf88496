"""The readers of claims: attributions, kernels, step times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sessions.model import Study
from sessions.numbers import counted
from sessions.studies import scaling
from sessions.studies.attribution import estimation
from sessions.studies.attribution.words import is_unchecked, path_of, rows, without_effect
from sessions.verdicts import statistics, verdict
from workbench.claims._claim import Reading, Results, Unmeasured

Read = Callable[[Results], Reading]
LEAST_STEPS = 5  # steps of a size, so that one delayed step is not its median
LEAST_SIZES = 4  # for an exponent: with three, one degree of freedom is left


def speed_up(toggle: str = "") -> Read:
    """Return a reader of how many times faster than the base the ladder is, up to ``toggle``."""

    def read(results: Results) -> Reading:
        row = _arm(results, toggle)
        return _faster(results, row, row, 0)

    return read


def slow_down(toggle: str = "") -> Read:
    """Return a reader of the step time over the base's."""

    def read(results: Results) -> Reading:
        faster = speed_up(toggle)(results)
        low, high = faster.ends
        of_means = faster.of_means and (1 / faster.of_means[1], 1 / faster.of_means[0])
        return replace(
            faster, value=1 / faster.value, low=1 / high, high=1 / low, of_means=of_means
        )

    return read


def step_speed_up(toggle: str) -> Read:
    """Return a reader of how many times faster a rung is than the one before."""

    def read(results: Results) -> Reading:
        row = _arm(results, toggle)
        before = [arm["arm"] for arm in rows(_study(results), "arms") if arm["state"] == "measured"
                  and arm["arm"] < row["arm"]]  # fmt: skip
        for effect in rows(_study(results), "effects"):
            if effect["quantity"] == "time" and effect["name"].startswith(f"{toggle}="):
                return _faster(results, row, effect, int(before[-1]))
        raise Unmeasured(f"the separate effect of {toggle} is not known")

    return read


def with_effect(toggle: str, read: Read) -> Read:
    """Return a reading that counts only if a rung of the ladder took effect."""

    def effective(results: Results) -> Reading:
        for clause in without_effect(_arm(results, toggle)):
            if clause.startswith(f"{toggle}="):
                raise Unmeasured(clause)
        return read(results)

    return effective


def arms_right() -> Read:
    """Return a reader of the share of the configurations that ran, and with right numbers."""

    def read(results: Results) -> Reading:
        studies = [study for study in results.studies if study is not None]
        if not studies or len(studies) < len(results.studies):
            raise Unmeasured("the attribution was not started")
        shares = [_arms_right(study) for study in studies]
        right, count = sum(share[0] for share in shares), sum(share[1] for share in shares)
        if not count:
            raise Unmeasured("no arm was examined")
        return Reading(
            right / count, note="; ".join(filter(None, (problem for _, _, problem in shares)))
        )

    return read


def _arms_right(study: Study) -> tuple[int, int, str]:
    """Return how many of how many arms ran with right numbers, and what the others did."""
    arms, blocked = rows(study, "arms"), rows(study, "blocked")
    for row in arms:  # unchecked numbers are neither right nor wrong
        if row["state"] == "not built" or (
            row["state"] == "measured" and not math.isfinite(row["wrong"])
        ):
            why = row["reason"] or row["numerics"] or "its numbers were not checked"
            raise Unmeasured(f"{row['title']}: {why}")
    right = [row for row in arms if row["state"] == "measured" and row["wrong"] == 0]
    problems = [
        f"{row['title']}: {row['state']}, {row['numerics'] or row['reason']}"
        for row in arms
        if row not in right
    ]
    problems += [f"{row['toggle']}: {row['reason']}" for row in blocked]
    return len(right), len(arms) + len(blocked), "; ".join(problems)


def ledger_ratio(numerator: str, denominator: str) -> Read:
    """Return a reader of the ratio of two facts of the experiment's last segment."""

    def read(results: Results) -> Reading:
        for segment in reversed(results.segments):
            if numerator in segment.ledger and float(segment.ledger.get(denominator, 0)) > 0:
                return Reading(float(segment.ledger[numerator]) / segment.ledger[denominator])
        raise Unmeasured(f"no segment records its {denominator}")

    return read


def memory_share(toggle: str = "") -> Read:
    """Return a reader of peak memory over the base's: the ladder up to ``toggle``, or all of it."""

    def read(results: Results) -> Reading:
        row, base = _rung(results, toggle), _arm(results, None)
        share = float(row["peak_bytes"]) / float(base["peak_bytes"])  # known before any round
        if not math.isfinite(share):
            _arm(results, toggle)  # says why, if it was not measured at all
            raise Unmeasured("the peak memory of an arm is not known")
        return Reading(share, wrong=_wrong(row), note=_note(row, base))

    return read


def error(column: str, toggle: str = "") -> Read:
    """Return a reader of ``mse`` or ``max_error`` of an arm's outputs against the reference."""

    def read(results: Results) -> Reading:
        value = float(_arm(results, toggle)[column])
        if not math.isfinite(value):
            raise Unmeasured("the outputs were not compared with a reference")
        return Reading(value)

    return read


def with_times(read: Read) -> Read:
    """Return a reading whose note names the step times of a ladder's first and last arm."""

    def noted(results: Results) -> Reading:
        reading = read(results)
        arms = rows(_study(results), "arms")
        base, last = (float(arm["step_ms"]) for arm in (arms[0], arms[-1]))
        note = "; ".join(filter(None, (f"{base:.3g} ms and {last:.3g} ms here", reading.note)))
        return replace(reading, note=note)

    return noted


def exponent(setting: str) -> Read:
    """Return a reader of the exponent of step time in a setting: the slope of logs, t interval."""

    def read(results: Results) -> Reading:
        points = {}
        for segment in results.segments:
            times = statistics.steady_ms(segment)
            if len(times) >= LEAST_STEPS:
                size = float(segment.configuration.settings[setting])
                points[size] = float(np.median(times))
        if len(points) < LEAST_SIZES:
            raise Unmeasured(
                f"at least {LEAST_SIZES} sizes need {LEAST_STEPS} steady steps or more; "
                f"{len(points)} of {counted(len(results.segments), 'size')} have them"
            )
        line = scaling.fit(list(points), list(points.values()))
        shown = ", ".join(f"{size:g}: {ms:.3g} ms" for size, ms in sorted(points.items()))
        return Reading(line.exponent, line.low, line.high, note=shown)

    return read


def _faster(results: Results, arm: Mapping[str, Any], row: Mapping[str, Any], base: int) -> Reading:
    """Return how many times faster an arm is than ``base``, of a row with a ratio of step times."""
    ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
    rounds = int(row["rounds"])
    if not math.isfinite(ratio):
        raise Unmeasured("no round was measured")
    seconds = float(_study(results).facts.get("seconds", math.nan))
    of_means = _of_means(results, int(arm["arm"]), base)
    note = _note(arm, rows(_study(results), "arms")[base])
    return Reading(1 / ratio, 1 / high, 1 / low, rounds, seconds, _wrong(arm), note, of_means)


def _of_means(results: Results, arm: int, base: int) -> tuple[float, float] | None:
    """Return how many times faster by the blocks' mean steps: the interval, if it is known."""
    blocks = _study(results).tables.get("blocks", {})
    if "mean_ms" not in blocks:  # older files lack this column
        return None
    columns, arms = (blocks["round"], blocks["arm"]), len(rows(_study(results), "arms"))
    voids = [str(void) for void in blocks["void"]]
    logs = np.log(estimation.rounds(*columns, blocks["mean_ms"], voids, arms))
    faster = logs[:, base] - logs[:, arm]
    by_means = verdict.interval(faster[np.isfinite(faster)])
    return by_means.ratios[1:] if by_means.n >= verdict.MIN_PAIRS else None


def _arm(results: Results, toggle: str | None) -> Mapping[str, Any]:
    """Return the arm that ``_rung`` finds, if it was measured."""
    row = _rung(results, toggle)
    if row["state"] != "measured":
        raise Unmeasured(f"{row['title']}: {row['state']}: {row['reason']}")
    return row


def _rung(results: Results, toggle: str | None) -> Mapping[str, Any]:
    """Return the ladder's arm whose rung is ``toggle``; the last if empty, the base for None."""
    study = _study(results)
    arms = rows(study, "arms")
    if not arms:
        raise Unmeasured("no arm was examined")
    if toggle is None:
        row = arms[0]
    elif toggle:
        matching = [row for row in arms if row["title"].startswith(f"+ {toggle}=")]
        if not matching:
            raise Unmeasured(_blocked(study, toggle))
        row = matching[0]
    else:
        blocked = rows(study, "blocked")
        if blocked:
            raise Unmeasured(f"{blocked[0]['toggle']} is blocked: {blocked[0]['reason']}")
        row = arms[-1]
    return row


def _study(results: Results) -> Study:
    study = results.studies[0] if results.studies else None
    if study is None:
        raise Unmeasured("the attribution was not started")
    return study


def _blocked(study: Study, toggle: str) -> str:
    for row in rows(study, "blocked"):
        if row["toggle"].startswith(f"{toggle}="):
            return f"blocked: {row['reason']}"
    return f"the ladder has no toggle {toggle}"


def _wrong(row: Mapping[str, Any]) -> str:
    return str(row["title"]) if row["wrong"] == 1 else ""


def _note(row: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Say what a reader must know of an arm's numbers, of idle options, and of both arms' paths."""
    unknown = ["numbers not checked"] if is_unchecked(row) else []
    ran = [f"{arm['title']}: {path_of(arm)}" for arm in (row, base) if path_of(arm)]
    return "; ".join(unknown + without_effect(row) + ran)
