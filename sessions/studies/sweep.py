"""A sweep as a study of a session: a configuration at many sizes under several arms.

The study has three tables. ``points`` has one row per point, in the order of measurement:
``x`` and, for two fields, ``y`` (numbers, or words), ``arm``, ``outcome`` with its ``reason``,
``median_ms`` with ``low_ms`` and ``high_ms`` (95 %), ``error`` (standard error of its logarithm),
``tokens_per_s``, ``peak_bytes`` (in the timed steps) and ``blocks``. ``fits`` has the exponent of
time over the first field for each arm and value of the second, over all sizes and the longer half.
``numbers`` has one row per checked arm: ``right`` (1, 0, NaN if unknown) and ``text``. The check at
the smallest size is valid for every point. If a field is not a size (a toggle, a workload), each of
its values has a row, which ``x`` or ``y`` names.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import SWEEP, Configuration, Scalar, Study
from sessions.numbers import Cell, Measured, count_of, number
from sessions.numerics import MARKS
from sessions.sizes import sized
from sessions.studies import scaling
from sessions.studies.scaling import Scaling
from sessions.tables import PEAK, RESIDENT, Column, Table

KIND, POINTS, FITS, NUMBERS = SWEEP, "points", "fits", "numbers"
MEASURED, OUT_OF_MEMORY, REFUSED = "measured", "out of memory", "refused"
FAILED, VOID = "failed", "void"
ALL, LONGER = "all", "longer half"  # parts of a curve
LEAST_BLOCKS = 3  # fewest blocks of an interval
_MOST_CORRELATION = 0.5  # largest correlation of time with the position along an axis
_EXPONENT = 0.05  # finest rounding of an exponent of two points

Value = float | str


@dataclass(frozen=True)
class Typical:
    """A step time from blocks of steps; NaN where there are too few.

    The interval covers variation during this point, but no change between two points. So it decides
    digits and weights and is never shown as an interval.
    """

    ms: float
    error: float  # standard error of its logarithm
    low_ms: float  # lower end of the 95 % interval
    high_ms: float


@dataclass(frozen=True)
class Numbers:
    """The result of a numerics check (None: unknown), and how it was checked or why it was not."""

    right: bool | None
    text: str


@dataclass(frozen=True)
class Curve:
    """The measurements of one arm, at one value of the second field; ascending in x.

    ``x`` are numbers, or positions on the axis if its values are words. All are (n,).
    """

    arm: int
    label: str
    y: Value | None
    x: NDArray
    outcomes: list[str]
    reasons: list[str]
    columns: Mapping[str, NDArray]
    numbers: Sequence[Numbers | None] = ()  # by point

    @property
    def measured(self) -> NDArray:
        """Mask (n,) of the points that have a time."""
        return np.array([outcome == MEASURED for outcome in self.outcomes], bool)

    @property
    def right(self) -> bool | None:
        """Return True if all results are right, False if some are wrong, None if unknown."""
        known = {check.right for check in self.numbers if check is not None}
        return False if False in known else None if None in known or not known else True

    @property
    def was_checked(self) -> bool:
        """Return True if the results were checked, or the reason for no check is known."""
        return any(check is not None for check in self.numbers)


def typical(medians_ms: ArrayLike) -> Typical:
    """Return the geometric mean of block medians, with Student's interval of its logarithm.

    Blocks must be few and long, so that they are nearly independent (batch means).
    """
    logs = np.log(np.asarray(medians_ms, np.float64))
    count = len(logs)
    middle = math.exp(float(logs.mean())) if count else math.nan
    if count < LEAST_BLOCKS:
        return Typical(middle, math.nan, math.nan, math.nan)
    from scipy import special  # slow to load, where nothing is swept too

    error = float(logs.std(ddof=1)) / math.sqrt(count)
    spread = math.exp(float(special.stdtrit(count - 1, 0.975)) * error)
    return Typical(middle, error, middle / spread, middle * spread)


def balanced_order(counts: Sequence[int], draw: random.Random) -> list[tuple[int, ...]]:
    """Return the points of a grid in a random order that correlates no axis with time.

    ``counts``: the number of values of each axis. The sizes of a curve are measured one after the
    other. If they came in ascending order by chance, a steady drift of the machine would look like
    an exponent, so such orders are drawn again.
    """
    points = list(itertools.product(*map(range, counts)))
    axes = [axis for axis, count in enumerate(counts) if count > 1 and len(points) > 2]
    times = np.arange(len(points))
    while True:
        draw.shuffle(points)
        along = (np.corrcoef(times, [index[axis] for index in points])[0, 1] for axis in axes)
        if all(abs(correlation) <= _MOST_CORRELATION for correlation in along):
            return points


def is_number(value: object) -> bool:
    """Return True if a value of an axis can be fitted and drawn to scale."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_values(text: str, field: str = "") -> list[Scalar]:
    """Split text at commas into the values of an axis: finite numbers, true, false or words.

    If an option of a toggle is a word, all its options are. Paths of data are always words. Raises
    ``ValueError`` for a missing value.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{text!r}: expected VALUE,VALUE,...")
    if field == "data":
        return [*parts]
    values = [_read(part) for part in parts]
    if field.startswith("toggles.") and not all(map(is_number, values)):
        return [*parts]
    return values


def fits(points: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the rows of ``fits`` from columns of ``points`` so far; empty if x is in words."""
    rows: dict[str, list[Any]] = {}
    if not all(map(is_number, points["x"])):
        return rows
    second = points.get("y", [None] * len(points["x"]))
    for arm, y in sorted(set(zip(points["arm"], second, strict=True)), key=str):
        chosen = [
            index
            for index, key in enumerate(zip(points["arm"], second, strict=True))
            if key == (arm, y) and points["outcome"][index] == MEASURED
        ]
        x, times, errors = (
            np.array([points[name][index] for index in chosen], np.float64)
            for name in ("x", "median_ms", "error")
        )
        for part in (ALL, LONGER):
            taken = scaling.longer_half(x) if part == LONGER else np.ones(len(x), bool)
            if part == LONGER and taken.sum() < scaling.LEAST_POINTS:
                continue
            fitted = scaling.fit(x[taken], times[taken], errors[taken])
            row = {"arm": arm, "part": part, **vars(fitted)} | ({} if y is None else {"y": y})
            for name, cell in row.items():
                rows.setdefault(name, []).append(cell)
    return rows


# Reading a study


def sweeps(studies: Sequence[Study]) -> list[Study]:
    """Return the studies that are sweeps and have a point."""
    return [study for study in studies if study.kind == KIND and POINTS in study.tables]


def axis(study: Study, field: int) -> list[Value]:
    """Return the values of the first field (0) or second (1): numbers sorted, words in order."""
    values = study.request.get(f"values_{field}", [])
    if all(map(is_number, values)):
        return sorted(float(value) for value in values)
    return [str(value) for value in values]


def is_numeric(study: Study) -> bool:
    """Return True if the first field's values are numbers."""
    return all(map(is_number, study.request.get("values_0", [])))


def field_title(study: Study, field: int = 0) -> str:
    """Return the field as axes name it.

    ``sequence`` of ``settings.sequence``, ``layers`` of ``model.n_layers``.
    """
    name = str(study.request["fields"][field]).rpartition(".")[2]
    return name.removeprefix("n_").replace("_", " ")


def dimensions(study: Study) -> int:
    """Return how many fields were varied."""
    return len(study.request["fields"])


def curves(study: Study) -> list[Curve]:
    """Return every arm at every value of the second field, as far as it was measured."""
    table = study.tables.get(POINTS)
    if table is None:
        return []
    xs, ys = axis(study, 0), axis(study, 1) if "y" in table else [None]
    words = not is_numeric(study)
    curves_measured = []
    checks = _checks(study)
    for arm, label in enumerate(study.request["arms"]):
        for y in ys:
            curve_rows = [
                row
                for row in np.flatnonzero(table["arm"] == arm).tolist()
                if y is None or _value(table["y"][row]) == y
            ]
            at = {row: _value(table["x"][row]) for row in curve_rows}
            curve_rows = sorted(
                (row for row in curve_rows if at[row] in xs), key=lambda p: xs.index(at[p])
            )
            if not curve_rows:
                continue
            x = [xs.index(at[row]) if words else at[row] for row in curve_rows]
            outcomes = [str(table["outcome"][row]) for row in curve_rows]
            curves_measured.append(
                Curve(
                    arm=arm,
                    label=str(label),
                    y=y,
                    x=np.array(x, np.float64),
                    outcomes=outcomes,
                    reasons=[str(table["reason"][row]) for row in curve_rows],
                    columns={name: table[name][curve_rows] for name in _NUMBERS},
                    numbers=[
                        _numbers_at(checks, arm, at[row], y) if outcome == MEASURED else None
                        for row, outcome in zip(curve_rows, outcomes, strict=True)
                    ],
                )
            )
    return curves_measured


def _checks(study: Study) -> dict[tuple[int, Value | None, Value | None], Numbers]:
    """Return the check results by arm, x and y; None for a field that makes no difference."""
    table = study.tables.get(NUMBERS, {})
    checks = {}
    for row in range(len(table["arm"]) if table else 0):
        x, y = (_value(table[name][row]) if name in table else None for name in "xy")
        right, arm = float(table["right"][row]), count_of(table["arm"][row])
        if arm is None or arm >= len(study.request["arms"]):
            continue  # the row belongs to no arm
        checks[arm, x, y] = Numbers(
            None if math.isnan(right) else bool(right), str(table["text"][row])
        )
    return checks


def _numbers_at(
    checks: Mapping[tuple[int, Value | None, Value | None], Numbers],
    arm: int,
    x: Value,
    y: Value | None,
) -> Numbers | None:
    keys = ((arm, x, y), (arm, x, None), (arm, None, y), (arm, None, None))
    return next((checks[key] for key in keys if key in checks), None)


def wrong_arms(study: Study) -> list[str]:
    """Return the arms whose results are out of tolerance: wrong however fast."""
    wrong = {arm for (arm, *_), numbers in _checks(study).items() if numbers.right is False}
    return [str(name) for arm, name in enumerate(study.request["arms"]) if arm in wrong]


def numbers_lines(study: Study) -> list[str]:
    """Return one sentence for each checked arm, or for each of its checked values."""
    checks = sorted(_checks(study).items(), key=lambda item: item[0][0])
    return [
        f"{study.request['arms'][arm]}: numbers {MARKS[numbers.right]}: {numbers.text}"
        for (arm, *_), numbers in checks
    ]


def marked(curve: Curve) -> str:
    """Return the curve's arm, after "wrong" or "not checked": the ends of labels are elided."""
    if not curve.was_checked or curve.right:
        return curve.label
    return f"{'numbers not checked' if curve.right is None else 'WRONG numbers'}: {curve.label}"


def fit_of(study: Study, curve: Curve, part: str = ALL) -> Scaling | None:
    """Return the fit of one curve, or None if there is none."""
    table = study.tables.get(FITS)
    if table is None:
        return None
    for row in range(len(table["arm"])):
        same = table["arm"][row] == curve.arm and str(table["part"][row]) == part
        if same and (curve.y is None or _value(table["y"][row]) == curve.y):
            values = {field.name: table[field.name][row] for field in fields(Scaling)}
            points = count_of(values["n"]) or 0
            return Scaling(**values | {"n": points, "reason": str(values["reason"])})
    return None


def toggles(study: Study) -> list[dict[str, str]]:
    """Return the toggles that each arm changes in the base."""
    return [dict(json.loads(text)) for text in study.request.get("toggles", [])]


# In words and tables


def exponent_text(scaling_fit: Scaling | None) -> str:
    """Return ``1.02 (0.98 to 1.06)``, or why there is none."""
    if scaling_fit is None or not math.isfinite(scaling_fit.exponent):
        return "no exponent" if scaling_fit is None else f"no exponent: {scaling_fit.reason}"
    if not math.isfinite(scaling_fit.low):
        return f"{number(scaling_fit.exponent, _EXPONENT)}, no interval: {scaling_fit.reason}"
    error = (scaling_fit.high - scaling_fit.low) / 2
    middle, low, high = (
        number(end, error) for end in (scaling_fit.exponent, scaling_fit.low, scaling_fit.high)
    )
    return f"{middle} ({low} to {high})"


def name_of(study: Study, curve: Curve) -> str:
    """Return the curve's arm, and its value of the second field."""
    if curve.y is None:
        return marked(curve)
    return f"{field_title(study, 1)} {shown(curve.y)}, {marked(curve)}"


def peak_title(study: Study) -> str:
    """Return the name of a point's memory: that of the process if no allocator counts."""
    return RESIDENT if str(study.facts.get("memory", "")).startswith("resident") else PEAK


def throughput_unit(study: Study) -> str:
    """Return the unit of throughput: tokens or samples."""
    try:
        base = msgspec.json.decode(str(study.request.get("base", "")), type=Configuration)
    except msgspec.MsgspecError:  # another version may have written it
        return "tokens"
    return base.throughput_unit


def points_table(study: Study) -> Table:
    """Return one row for each point, ascending, each arm in turn; the last column is the error."""
    numeric = is_numeric(study)
    first = [Column(field_title(study, axis_number)) for axis_number in range(dimensions(study))]
    swept = curves(study)
    unit, peaks = sized(float(size) for curve in swept for size in curve.columns["peak_bytes"])
    peak = iter(peaks)
    columns = [
        *first,
        Column("arm"),
        Column("outcome"),
        Column("step time", "ms"),
        *([Column("exponent from the size before")] if numeric else []),
        Column(f"{throughput_unit(study)}/s"),
        Column(peak_title(study), unit),
        Column("blocks"),
        Column("numbers"),
        Column("note"),
    ]
    rows: list[list[Cell]] = []
    xs = axis(study, 0)
    for curve in swept:
        column = curve.columns
        local = scaling.steps_between(curve.x, column["median_ms"])
        for point, x in enumerate(curve.x.tolist()):
            low, high = column["low_ms"][point], column["high_ms"][point]
            middle, half = float(column["median_ms"][point]), float(high - low) / 2
            rate = float(column["tokens_per_s"][point])
            row: list[Cell] = [shown(x if numeric else xs[int(x)])]
            row += [] if curve.y is None else [shown(curve.y)]
            row += [curve.label, curve.outcomes[point], Measured(middle, half)]
            row += [float(local[point])] if numeric else []
            row += [
                Measured(rate, rate * half / middle if middle > 0 else math.nan),
                next(peak),
                count_of(column["blocks"][point]),
                "" if (check := curve.numbers[point]) is None else MARKS[check.right],
                curve.reasons[point],
            ]
            rows.append(row)
    return Table(study.title, columns, rows)


def fits_table(study: Study) -> Table:
    """Return one row for each curve and part: the exponent of time over the first field."""
    field = field_title(study)
    columns = [
        Column("curve"),
        Column("sizes"),
        Column(f"exponent over {field}"),
        Column("95 % interval"),
        Column("off the line", "%"),
        Column("points"),
        Column("note"),
    ]
    rows: list[list[Cell]] = []
    for curve in curves(study):
        for part in (ALL, LONGER):
            if (fitted := fit_of(study, curve, part)) is None:
                continue
            error = (fitted.high - fitted.low) / 2
            ends = [number(end, error) for end in (fitted.low, fitted.high)]
            rows.append(
                [
                    name_of(study, curve),
                    part,
                    Measured(fitted.exponent, error),
                    " to ".join(ends) if math.isfinite(error) else None,
                    100 * float(fitted.scatter),
                    fitted.n,
                    fitted.reason,
                ]
            )
    return Table("Exponents", columns, rows)


_NUMBERS = ("median_ms", "low_ms", "high_ms", "error", "tokens_per_s", "peak_bytes", "blocks")


def _value(cell: Any) -> Value:
    return str(cell) if isinstance(cell, str) else float(cell)


def shown(value: Value) -> str:
    """Return a value of an axis as text: 512, 0.5, base."""
    return str(value) if isinstance(value, str) else f"{value:.15g}"


def _read(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            if math.isfinite(value := kind(text)):
                return value
        except (ValueError, OverflowError):  # more digits than a float has
            pass
    return text
