"""A sweep as a session keeps it: a configuration at many sizes under several arms, in a study.

Its study has two tables. ``points`` has one row a point, in the order in which they were measured:
``x`` and, of two fields, ``y`` (numbers, or words), ``arm``, ``outcome`` with its ``reason``,
``median_ms`` with ``low_ms`` and ``high_ms`` (95 %), ``error`` (standard error of its logarithm),
``tokens_per_s``, ``peak_bytes`` (in the timed steps) and ``blocks``. ``fits`` has the exponent of
time over the first field for each arm and value of the second, over all sizes and the longer half.
``numbers`` has one row an arm, once they were checked: ``right`` (1, 0, NaN where nobody knows) and
``text``, found at the smallest size and telling of every point. Where a field is no size (a toggle,
a workload), it has one for each of its values too, which ``x`` or ``y`` name.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import Scalar, Study
from sessions.numbers import Cell, Measured, number
from sessions.numerics import MARKS
from sessions.sizes import sized
from sessions.studies import scaling
from sessions.studies.scaling import Scaling
from sessions.tables import PEAK, RESIDENT, Column, Table

KIND, POINTS, FITS, NUMBERS = "sweep", "points", "fits", "numbers"
MEASURED, OUT_OF_MEMORY, REFUSED = "measured", "out of memory", "refused"
FAILED, VOID = "failed", "void"
ALL, LONGER = "all", "longer half"  # parts of a curve
LEAST_BLOCKS = 3  # for an interval
_MOST_CORRELATION = 0.5  # of the order in time with the places along an axis
_EXPONENT = 0.05  # what an exponent of two points is rounded to, at best

Value = float | str


@dataclass(frozen=True)
class Typical:
    """A step time from blocks of steps; NaN where there are too few.

    The interval is of what varied while this point was measured. It does not cover what changed
    between two points, so it decides digits and weights and is never shown as an interval.
    """

    ms: float
    error: float  # standard error of its logarithm
    low_ms: float  # of the 95 % interval
    high_ms: float


@dataclass(frozen=True)
class Numbers:
    """Whether numbers are right (None: nobody knows), and how that was found or why it was not."""

    right: bool | None
    text: str


@dataclass(frozen=True)
class Curve:
    """What was measured of one arm, at one value of the second field; ascending in x.

    ``x`` are numbers, or places along the axis where its values are words. All are (n,).
    """

    arm: int
    label: str
    y: Value | None
    x: NDArray
    outcomes: list[str]
    reasons: list[str]
    columns: Mapping[str, NDArray]
    numbers: Sequence[Numbers | None] = ()  # of each point

    @property
    def measured(self) -> NDArray:
        """Which of the points have a time: (n,) bools."""
        return np.array([outcome == MEASURED for outcome in self.outcomes], bool)

    @property
    def right(self) -> bool | None:
        """Whether all numbers are right: False where some are wrong, None where nobody knows."""
        known = {of.right for of in self.numbers if of is not None}
        return False if False in known else None if None in known or not known else True

    @property
    def is_told(self) -> bool:
        """Whether it was found out, or found that nobody can know."""
        return any(of is not None for of in self.numbers)


def typical(medians_ms: ArrayLike) -> Typical:
    """The geometric mean of block medians, with Student's interval of its logarithm.

    Blocks are to be few and long, so that they hardly depend on one another (batch means).
    """
    logs = np.log(np.asarray(medians_ms, np.float64))
    count = len(logs)
    middle = math.exp(float(logs.mean())) if count else math.nan
    if count < LEAST_BLOCKS:
        return Typical(middle, math.nan, math.nan, math.nan)
    from scipy import stats  # seconds to load, where nothing is swept too

    error = float(logs.std(ddof=1)) / math.sqrt(count)
    spread = math.exp(float(stats.t.ppf(0.975, count - 1)) * error)
    return Typical(middle, error, middle / spread, middle * spread)


def balanced_order(counts: Sequence[int], draw: random.Random) -> list[tuple[int, ...]]:
    """Return the places of a grid in random order, in which no axis goes along with time.

    ``counts``: how many places each axis has. The sizes of a curve are measured one after the
    other. If they came in ascending order by chance, a steady drift of the machine would look like
    an exponent, so such orders are drawn again.
    """
    places = list(itertools.product(*map(range, counts)))
    axes = [axis for axis, count in enumerate(counts) if count > 1 and len(places) > 2]
    times = np.arange(len(places))
    while True:
        draw.shuffle(places)
        along = (np.corrcoef(times, [place[axis] for place in places])[0, 1] for axis in axes)
        if all(abs(correlation) <= _MOST_CORRELATION for correlation in along):
            return places


def is_number(value: object) -> bool:
    """Whether a value of an axis is one that can be fitted and drawn to scale."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_values(text: str, field: str = "") -> list[Scalar]:
    """Values of an axis as a person writes them, between commas: numbers, true, false or words.

    Options of a toggle are words, all of them where one is. Raises ``ValueError`` where one is
    missing.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{text!r}: expected VALUE,VALUE,...")
    found = [_read(part) for part in parts]
    if field.startswith("toggles.") and not all(map(is_number, found)):
        return [*parts]
    return found


def fits(points: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The rows of ``fits`` from columns of ``points`` so far; empty where x is in words."""
    found: dict[str, list[Any]] = {}
    if not all(map(is_number, points["x"])):
        return found
    second = points.get("y", [None] * len(points["x"]))
    for arm, y in sorted(set(zip(points["arm"], second, strict=True)), key=str):
        chosen = [
            place
            for place, of in enumerate(zip(points["arm"], second, strict=True))
            if of == (arm, y) and points["outcome"][place] == MEASURED
        ]
        x, times, errors = (
            np.array([points[name][place] for place in chosen], np.float64)
            for name in ("x", "median_ms", "error")
        )
        for part in (ALL, LONGER):
            taken = scaling.longer_half(x) if part == LONGER else np.ones(len(x), bool)
            if part == LONGER and taken.sum() < scaling.LEAST_POINTS:
                continue
            fitted = scaling.fit(x[taken], times[taken], errors[taken])
            row = {"arm": arm, "part": part, **vars(fitted)} | ({} if y is None else {"y": y})
            for name, cell in row.items():
                found.setdefault(name, []).append(cell)
    return found


# Reading a study


def sweeps(studies: Sequence[Study]) -> list[Study]:
    """The studies that are sweeps and have a point."""
    return [study for study in studies if study.kind == KIND and POINTS in study.tables]


def axis(study: Study, place: int) -> list[Value]:
    """The values of the first field (0) or the second (1), numbers ascending, words as asked."""
    asked = study.asked.get(f"values_{place}", [])
    if all(map(is_number, asked)):
        return sorted(float(value) for value in asked)
    return [str(value) for value in asked]


def is_numeric(study: Study, place: int = 0) -> bool:
    """Whether that field's values are numbers."""
    return all(map(is_number, study.asked.get(f"values_{place}", [])))


def field_title(study: Study, place: int = 0) -> str:
    """The field as axes name it: ``sequence`` of ``settings.sequence``, ``layers`` of
    ``model.n_layers``.
    """
    name = str(study.asked["fields"][place]).rpartition(".")[2]
    return name.removeprefix("n_").replace("_", " ")


def dimensions(study: Study) -> int:
    """How many fields were varied."""
    return len(study.asked["fields"])


def curves(study: Study) -> list[Curve]:
    """Every arm at every value of the second field, as far as it was measured."""
    table = study.tables.get(POINTS)
    if table is None:
        return []
    xs, ys = axis(study, 0), axis(study, 1) if "y" in table else [None]
    arms = table["arm"].astype(int)
    words = not is_numeric(study)
    found = []
    told = _told(study)
    for arm, label in enumerate(study.asked["arms"]):
        for y in ys:
            own = [
                place
                for place in np.flatnonzero(arms == arm).tolist()
                if y is None or _value(table["y"][place]) == y
            ]
            at = {place: _value(table["x"][place]) for place in own}
            own = sorted((place for place in own if at[place] in xs), key=lambda p: xs.index(at[p]))
            if not own:
                continue
            x = [xs.index(at[place]) if words else at[place] for place in own]
            outcomes = [str(table["outcome"][place]) for place in own]
            found.append(
                Curve(
                    arm=arm,
                    label=str(label),
                    y=y,
                    x=np.array(x, np.float64),
                    outcomes=outcomes,
                    reasons=[str(table["reason"][place]) for place in own],
                    columns={name: table[name][own] for name in _NUMBERS},
                    numbers=[
                        _numbers_at(told, arm, at[place], y) if outcome == MEASURED else None
                        for place, outcome in zip(own, outcomes, strict=True)
                    ],
                )
            )
    return found


def _told(study: Study) -> dict[tuple[int, Value | None, Value | None], Numbers]:
    """What was found of the numbers, by arm, x and y; None for a field that makes no difference."""
    table = study.tables.get(NUMBERS, {})
    found = {}
    for place in range(len(table["arm"]) if table else 0):
        x, y = (_value(table[name][place]) if name in table else None for name in "xy")
        right = float(table["right"][place])
        found[int(table["arm"][place]), x, y] = Numbers(
            None if math.isnan(right) else bool(right), str(table["text"][place])
        )
    return found


def _numbers_at(
    told: Mapping[tuple[int, Value | None, Value | None], Numbers],
    arm: int,
    x: Value,
    y: Value | None,
) -> Numbers | None:
    keys = ((arm, x, y), (arm, x, None), (arm, None, y), (arm, None, None))
    return next((told[key] for key in keys if key in told), None)


def wrong_arms(study: Study) -> list[str]:
    """The arms whose numbers are out of tolerance: wrong however fast."""
    wrong = {arm for (arm, *_), found in _told(study).items() if found.right is False}
    return [str(name) for arm, name in enumerate(study.asked["arms"]) if arm in wrong]


def numbers_lines(study: Study) -> list[str]:
    """One sentence for each arm whose numbers were looked at, or for each of its values."""
    told = sorted(_told(study).items(), key=lambda item: item[0][0])
    return [
        f"{study.asked['arms'][arm]}: numbers {MARKS[found.right]}: {found.text}"
        for (arm, *_), found in told
    ]


def marked(curve: Curve) -> str:
    """The curve's arm, and first that its numbers are wrong or not checked: ends are elided."""
    if not curve.is_told or curve.right:
        return curve.label
    return f"{'numbers not checked' if curve.right is None else 'WRONG numbers'}: {curve.label}"


def fit_of(study: Study, curve: Curve, part: str = ALL) -> Scaling | None:
    """The fit of one curve, or None where there is none."""
    table = study.tables.get(FITS)
    if table is None:
        return None
    for place in range(len(table["arm"])):
        same = int(table["arm"][place]) == curve.arm and str(table["part"][place]) == part
        if same and (curve.y is None or _value(table["y"][place]) == curve.y):
            values = {each.name: table[each.name][place] for each in fields(Scaling)}
            return Scaling(**values | {"n": int(values["n"]), "reason": str(values["reason"])})
    return None


def toggles(study: Study) -> list[dict[str, str]]:
    """What each arm switched over the base."""
    return [dict(json.loads(text)) for text in study.asked.get("toggles", [])]


# In words and tables


def exponent_text(found: Scaling | None) -> str:
    """``1.02 (0.98 to 1.06)``, or why there is none."""
    if found is None or not math.isfinite(found.exponent):
        return "no exponent" if found is None else f"no exponent: {found.reason}"
    if not math.isfinite(found.low):
        return f"{number(found.exponent, _EXPONENT)}, no interval: {found.reason}"
    error = (found.high - found.low) / 2
    middle, low, high = (number(end, error) for end in (found.exponent, found.low, found.high))
    return f"{middle} ({low} to {high})"


def name_of(study: Study, curve: Curve) -> str:
    """The curve's arm, and its value of the second field."""
    if curve.y is None:
        return marked(curve)
    return f"{field_title(study, 1)} {shown(curve.y)}, {marked(curve)}"


def peak_title(study: Study) -> str:
    """What a point's memory is: where no allocator counts, all that the process holds."""
    return RESIDENT if str(study.facts.get("memory", "")).startswith("resident") else PEAK


def points_table(study: Study) -> Table:
    """One row a point, ascending, each arm in turn; the last column says what went wrong."""
    numeric = is_numeric(study)
    first = [Column(field_title(study, place)) for place in range(dimensions(study))]
    found = curves(study)
    unit, peaks = sized(float(size) for one in found for size in one.columns["peak_bytes"])
    peak = iter(peaks)
    columns = [
        *first,
        Column("arm"),
        Column("outcome"),
        Column("step time", "ms"),
        *([Column("exponent from the size before")] if numeric else []),
        Column("tokens/s"),
        Column(peak_title(study), unit),
        Column("blocks"),
        Column("numbers"),
        Column("note"),
    ]
    rows: list[list[Cell]] = []
    xs = axis(study, 0)
    for curve in found:
        column = curve.columns
        local = scaling.steps_between(curve.x, column["median_ms"])
        for place, x in enumerate(curve.x.tolist()):
            low, high = column["low_ms"][place], column["high_ms"][place]
            middle, half = float(column["median_ms"][place]), float(high - low) / 2
            rate = float(column["tokens_per_s"][place])
            row: list[Cell] = [shown(x if numeric else xs[int(x)])]
            row += [] if curve.y is None else [shown(curve.y)]
            row += [curve.label, curve.outcomes[place], Measured(middle, half)]
            row += [float(local[place])] if numeric else []
            row += [
                Measured(rate, rate * half / middle if middle > 0 else math.nan),
                next(peak),
                int(column["blocks"][place]),
                "" if (of := curve.numbers[place]) is None else MARKS[of.right],
                curve.reasons[place],
            ]
            rows.append(row)
    return Table(study.title, columns, rows)


def fits_table(study: Study) -> Table:
    """One row a curve and part: the exponent of time over the first field, with its interval."""
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
            if (found := fit_of(study, curve, part)) is None:
                continue
            error = (found.high - found.low) / 2
            ends = [number(end, error) for end in (found.low, found.high)]
            rows.append(
                [
                    name_of(study, curve),
                    part,
                    Measured(found.exponent, error),
                    " to ".join(ends) if math.isfinite(error) else None,
                    100 * found.scatter,
                    found.n,
                    found.reason,
                ]
            )
    return Table("Exponents", columns, rows)


_NUMBERS = ("median_ms", "low_ms", "high_ms", "error", "tokens_per_s", "peak_bytes", "blocks")


def _value(cell: Any) -> Value:
    return str(cell) if isinstance(cell, str) else float(cell)


def shown(value: Value) -> str:
    """A value of an axis as text: 512, 0.5, base."""
    return str(value) if isinstance(value, str) else f"{value:.15g}"


def _read(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
