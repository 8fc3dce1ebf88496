"""A baseline against the current commit: step time, memory and results, as a table of findings.

Results are compared by a sketch of the first step's outputs, which every session keeps, and in
training by the loss after some steps. Two right computations of the same mathematics differ by at
most the sum of what the numerical check allows each of them. That bound is absolute for a loss,
which may be close to 0.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sessions import numerics
from sessions.model import PairedComparison, Segment
from sessions.numbers import change_text, margin_text, number
from sessions.sizes import size_text
from sessions.tables import Column, Table
from sessions.verdicts.comparison import OWN_PEAK, steady_peak_bytes
from sessions.verdicts.ratios import SegmentRatio
from sessions.verdicts.statistics import clock
from sessions.verdicts.verdict import region_of
from sessions.verdicts.verdict_words import claim_words, verdict_word

# Facts of a segment: the sketch of its first step's outputs; the loss after the first steps of a
# check; that the first step drew random numbers (dropout); the commit of a user's model file, and
# its path in that repository.
SKETCH, EARLY_LOSS, DRAWS = "result_sketch", "early_loss", "draws_random_numbers"
MODEL_COMMIT, MODEL_FILE = "model_commit", "model_file"

BUCKETS = 64  # numbers of a sketch; a power of two
UNCHECKED_TOLERANCE = 1e-2  # relative, if the numbers of neither side were checked
LOSS_TOLERANCE = 1e-3  # relative: rounding grows from step to step
# Growth of peak memory that counts: the allocator of a GPU counts exactly, and the resident set of
# a process on the CPU varies from start to start.
MEMORY_REGION = {"GPU": 0.01, "host": 0.05}


@dataclass(frozen=True)
class Finding:
    """One measure of the baseline and of the current commit, in words.

    ``regressed`` is None if it is not known.
    """

    measure: str
    baseline: str
    current: str
    change: str
    regressed: bool | None


def encode_sketch(numbers: Sequence[float]) -> str:
    """Return the numbers of a sketch as text."""
    return base64.b64encode(np.asarray(numbers, "<f4").tobytes()).decode("ascii")


def decode_sketch(text: object) -> NDArray | None:
    """Return the numbers of a sketch; None for a text that holds none."""
    try:
        content = base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(content) != 4 * BUCKETS:
        return None
    numbers = np.frombuffer(content, "<f4").astype(np.float64)
    return numbers if np.isfinite(numbers).all() else None


def sketch_difference(base: NDArray, current: NDArray) -> float:
    """Return the estimated relative difference of the results of two sketches."""
    scale = float(np.linalg.norm(base))
    distance = float(np.linalg.norm(current - base))
    return distance / scale if scale else math.inf if distance else 0.0


def compare_step_time(comparison: PairedComparison, regressed: bool | None) -> Finding:
    """Return the finding of interleaved blocks; ``regressed`` is what the caller expects of it."""
    medians = [
        [ms for arm, ms, void in zip(*_blocks(comparison), strict=True) if arm == k and not void]
        for k in (0, 1)
    ]
    base, current = (f"{number(float(np.median(ms)))} ms" if ms else "–" for ms in medians)
    ends = comparison.ratio, comparison.low, comparison.high
    words = claim_words(verdict_word(comparison), *ends, region_of(comparison))
    return Finding("step time", base, current, words, regressed)


def compare_unpaired(base_ms: float, current_ms: float, ratio: SegmentRatio) -> Finding:
    """Return the finding of two sessions that ran at different times: a ratio without a claim."""
    words = claim_words(ratio.verdict, ratio.ratio, *ratio.ends, ratio.region)
    return Finding("step time", f"{number(base_ms)} ms", f"{number(current_ms)} ms", words, None)


def compare_memory(base: Segment, current: Segment, region: float | None = None) -> Finding:
    """Return the finding of the peak memory of steady steps."""
    sizes = [_peak_bytes(segment) for segment in (base, current)]
    before, after = map(size_text, sizes)
    if not all(math.isfinite(size) and size > 0 for size in sizes):
        return Finding("peak memory", before, after, "not measured", None)
    allowed = MEMORY_REGION[clock(current)] if region is None else region
    growth = sizes[1] / sizes[0] - 1
    change = f"{change_text(growth, allowed)} (±{margin_text(allowed)} counts as the same)"
    return Finding("peak memory", before, after, change, growth > allowed)


def compare_results(base: Segment, current: Segment) -> Finding:
    """Return the finding of the results: against the reference, and against the baseline's."""
    before, after = (numerics.mark(side.ledger) or "not checked" for side in (base, current))
    if numerics.are_wrong(current.ledger):
        return Finding("results", before, after, numerics.text(current.ledger), True)
    allowed = _allowed_difference(base.ledger, current.ledger)
    sketches = [decode_sketch(segment.ledger.get(SKETCH, "")) for segment in (base, current)]
    if sketches[0] is None or sketches[1] is None:
        return Finding(
            "results",
            before,
            after,
            "not compared: a session stores no sketch of its results",
            None,
        )
    difference = sketch_difference(sketches[0], sketches[1])
    change = f"differ by {difference:.2g} (relative), at most {allowed:.2g} allowed"
    first, second = (segment.ledger.get(EARLY_LOSS) for segment in (base, current))
    is_same = difference <= allowed
    if isinstance(first, int | float) and isinstance(second, int | float):
        loss_difference = abs(second - first)
        of_checks = sum(side.ledger.get(numerics.LOSSES_TOLERANCE, 0.0) for side in (base, current))
        most = max(max(LOSS_TOLERANCE, allowed) * abs(first), of_checks)
        change += f"; early loss differs by {loss_difference:.2g}, at most {most:.2g} allowed"
        is_same &= math.isfinite(loss_difference) and loss_difference <= most
    if not is_same and any(side.ledger.get(DRAWS) for side in (base, current)):
        change += "; the model draws random numbers, and may have drawn different ones"
        return Finding("results", before, after, change, None)
    return Finding("results", before, after, change, not is_same)


def findings_table(title: str, findings: Sequence[Finding]) -> Table:
    """Return the findings as a table."""
    words = {True: "REGRESSED", False: "fine", None: "not known"}
    names = ("measure", "baseline", "current", "change", "outcome")
    rows = [
        [row.measure, row.baseline, row.current, row.change, words[row.regressed]]
        for row in findings
    ]
    return Table(title, [Column(name) for name in names], rows)  # type: ignore[arg-type]


def _blocks(comparison: PairedComparison) -> tuple[list[int], list[float], list[str]]:
    count = len(comparison.order)
    return comparison.order, comparison.medians_ms, comparison.voids or [""] * count


def _peak_bytes(segment: Segment) -> float:
    own_peak = float(segment.ledger.get(OWN_PEAK, math.nan))
    return own_peak if math.isfinite(own_peak) else steady_peak_bytes(segment)


def _allowed_difference(*ledgers: Mapping[str, Any]) -> float:
    """Return the sum of the sides' tolerances; an unchecked side has that of the checked one.

    Both sides have one configuration, and so roundings of one size.
    """
    known = [float(x[numerics.TOLERANCE]) for x in ledgers if numerics.TOLERANCE in x]
    missing = len(ledgers) - len(known)
    return sum(known) + missing * max(known, default=UNCHECKED_TOLERANCE)
