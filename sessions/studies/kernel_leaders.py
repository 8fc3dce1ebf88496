"""The best bundled kernel beside the best public one, for each operator, case and direction.

Bundled implementations are those whose name begins with "triton"; all others are PyTorch's or
another library's, and anyone could call them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sessions.model import KERNELS, Segment, Session
from sessions.numbers import interval_cells
from sessions.studies.kernels import implementation_of, median_us, speedup
from sessions.tables import Cell, Column, Table
from sessions.verdicts import verdict

BUNDLED = "triton"

_COLUMNS = [
    Column("operator"),
    Column("case"),
    Column("dtype"),
    Column("direction"),
    Column("bundled"),
    Column("bundled time", "µs"),
    Column("best public"),
    Column("public time", "µs"),
    Column("ratio"),
    Column("from"),
    Column("to"),
    Column("of the limit", "%"),
]


@dataclass(frozen=True)
class Leader:
    """The fastest implementations of one case; ``ratio`` is bundled over public time.

    ``low`` and ``high`` are the ends of its 95 % interval, NaN without one.
    """

    operator: str
    case: str
    dtype: str
    direction: str
    bundled: str
    bundled_us: float
    public: str
    public_us: float
    ratio: float
    low: float
    high: float
    of_limit: float


def leaders(session: Session) -> list[dict[str, Any]]:
    """Return the leaders as data, for programs."""
    return [asdict(leader) for leader in _leaders(session)]


def leaders_table(session: Session) -> Table:
    """Return one row for each case and direction that both sides were timed at, the worst first."""
    rows = sorted(_leaders(session), key=lambda leader: -leader.ratio)
    return Table("bundled kernels and the best public ones", _COLUMNS, [*map(_row, rows)])


def _leaders(session: Session) -> list[Leader]:
    groups: dict[tuple[str, str, str, str], list[Segment]] = {}
    for segment in session.segments:
        configuration = segment.configuration
        if configuration.family == KERNELS and median_us(segment) is not None:
            case, dtype = str(configuration.settings["case"]), str(configuration.settings["dtype"])
            groups.setdefault(
                (configuration.preset, case, dtype, configuration.workload), []
            ).append(segment)
    all_leaders = (_leader(words, segments) for words, segments in groups.items())
    return [leader for leader in all_leaders if leader is not None]


def _leader(words: tuple[str, str, str, str], segments: Sequence[Segment]) -> Leader | None:
    bundled = [s for s in segments if implementation_of(s).startswith(BUNDLED)]
    public = [s for s in segments if not implementation_of(s).startswith(BUNDLED)]
    if not bundled or not public:
        return None
    ours, best = min(bundled, key=_us), min(public, key=_us)
    ratio = speedup(ours, best)
    operator, case, dtype, direction = words
    return Leader(
        operator=operator,
        case=case,
        dtype=dtype,
        direction=direction,
        bundled=implementation_of(ours),
        bundled_us=_us(ours),
        public=implementation_of(best),
        public_us=_us(best),
        **dict(zip(("ratio", "low", "high"), ratio.ratios, strict=True)),
        of_limit=float(ours.ledger.get("floor_us", math.nan)) / _us(ours),
    )


def _row(leader: Leader) -> list[Cell]:
    span: list[Cell] = [leader.ratio, None, None]
    if leader.high > leader.low:
        span = interval_cells(leader.ratio, leader.low, leader.high, verdict.REGION)
    return [
        leader.operator,
        leader.case,
        leader.dtype,
        leader.direction,
        leader.bundled,
        leader.bundled_us,
        leader.public,
        leader.public_us,
        *span,
        100 * leader.of_limit,
    ]


def _us(segment: Segment) -> float:
    """Return the median time of a segment that has one."""
    return median_us(segment) or math.nan
