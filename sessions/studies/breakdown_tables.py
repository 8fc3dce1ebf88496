"""Tables of profiles for people: kernels, classes, modules, memory by role, two arms side by side.

Times are of one step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sessions.model import Study
from sessions.numbers import Cell
from sessions.sizes import sized
from sessions.studies import breakdown
from sessions.studies.breakdown import Node
from sessions.studies.kernel_names import brief
from sessions.tables import Column, Table

MOST = 25  # rows of a table that could have thousands
DEPTH = 3  # depth of modules that are shown


def kernels_table(study: Study, most: int = MOST) -> Table:
    """Return the kernels that took longest, for all modules together.

    "Of attainable" is the share of the ceilings' rate that the kernel's operator, or its class,
    reaches; the column is omitted if no share is known.
    """
    total = breakdown.total_us(study) or math.nan
    shares = breakdown.shares_by_kernel(study)
    known = any(math.isfinite(share) for share in shares.values())
    rows: list[list[Cell]] = []
    for name, (calls, us) in list(breakdown.by(study, "name").items())[:most]:
        row: list[Cell] = [brief(name), _count(calls), us, 100 * us / total]
        if known:
            row.append(100 * shares.get(name, math.nan))
        rows.append(row)
    heading = "Operator" if study.request.get("device") == "cpu" else "Kernel"
    columns = [*_columns(heading), *[Column("Of attainable", "%")] * known]
    return Table(f"{heading}s: {study.title}", columns, rows)


def kinds_table(study: Study) -> Table:
    """Time by operator class."""
    total = breakdown.total_us(study) or math.nan
    rows: list[list[Cell]] = [
        [name, _count(calls), us, 100 * us / total]
        for name, (calls, us) in breakdown.by(study, "kind").items()
    ]
    return Table(f"Operator classes: {study.title}", _columns("Class"), rows)


def achieved_table(study: Study) -> Table:
    """Each operator of the library, and class of the others: its time against the roof's."""
    rows: list[list[Cell]] = [
        [
            operator.name,
            _count(operator.calls),
            operator.us,
            operator.least_us,
            100 * operator.share,
        ]
        for operator in breakdown.achieved(study)
    ]
    columns = [
        Column("Operator"),
        Column("Calls"),
        Column("Achieved", "µs"),
        Column("Attainable", "µs"),
        Column("Of attainable", "%"),
    ]
    return Table(f"Operators against the roof: {study.title}", columns, rows)


def modules_table(study: Study, depth: int = DEPTH) -> Table:
    """Time by module, each with what is in it, down to some depth."""
    total = breakdown.total_us(study) or math.nan
    rows: list[list[Cell]] = []

    def add(node: Node, level: int) -> None:
        us = node.total_us
        name = node.path or "step"
        rows.append([f"{'. ' * level}{name}", us, node.own_us])
        rows[-1].append(100 * us / total)
        if level <= depth:
            for child in sorted(node.children.values(), key=lambda node: -node.total_us):
                add(child, level + 1)

    add(breakdown.tree(study), 0)
    columns = [
        Column("Module"),
        Column("Time", "µs"),
        Column("Own", "µs"),
        Column("Share", "%"),
    ]
    return Table(f"Modules: {study.title}", columns, rows)


def memory_table(study: Study) -> Table:
    """Bytes by role where most was allocated, each role's own most, and the estimate."""
    peaks, most = breakdown.peak(study), breakdown.highest(study)
    rows: list[tuple[str, Sequence[float]]] = [
        (breakdown.ROLE_TITLES.get(role, role), (size, most.get(role, size), estimate))
        for role, (size, estimate) in peaks.items()
        if most.get(role, size) or estimate > 0
    ]
    sums = [[pair[side] for pair in peaks.values()] for side in (0, 1)]
    known = [estimate for estimate in sums[1] if math.isfinite(estimate)]
    estimated = math.fsum(known) if known else math.nan
    rows.append(("total", (math.fsum(sums[0]), math.nan, estimated)))
    heads = ("At the peak", "Highest", "Estimated")
    return _of_sizes(f"Memory by role: {study.title}", heads, rows)


def gaps_table(study: Study) -> Table:
    """Return how long the GPU waited for each module's next kernel, under the profiler."""
    table = study.tables.get("gaps", {})
    rows: list[list[Cell]] = []
    if table:
        columns = (table["module"], table["count"], table["us"])
        rows = [[str(m), _count(float(n)), float(us)] for m, n, us in zip(*columns, strict=True)]
    heads = [Column("Before a kernel of"), Column("Times"), Column("Waited", "µs")]
    return Table(f"The GPU waits, under the profiler: {study.title}", heads, rows)


def difference_table(before: Study, after: Study, most: int = MOST) -> Table:
    """Two profiles aligned by module, or by class if not all have modules; largest change first."""
    why_not = breakdown.not_by_module(before, after)
    rows: list[list[Cell]] = [
        [change.module, change.before_us, change.after_us, change.difference_us]
        for change in breakdown.difference(before, after, "kind" if why_not else "module")[:most]
    ]
    head = "Class" if why_not else "Module"
    columns = [Column(head), Column("A", "µs"), Column("B", "µs"), Column("B − A", "µs")]
    return Table(f"By {head.lower()}: A {before.title}, B {after.title}", columns, rows)


def memory_difference_table(before: Study, after: Study) -> Table:
    """Bytes by role of two profiles, each at its own peak."""
    a, b = breakdown.peak(before), breakdown.peak(after)
    rows: list[tuple[str, Sequence[float]]] = []
    for role in breakdown.ROLES:
        sizes = [side.get(role, (math.nan, math.nan))[0] for side in (a, b)]
        if any(size > 0 for size in sizes):
            rows.append((breakdown.ROLE_TITLES[role], (*sizes, sizes[1] - sizes[0])))
    return _of_sizes("Memory at the peaks of A and B", ("A", "B", "B − A"), rows)


def _of_sizes(
    title: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]
) -> Table:
    """Bytes by role, all in one unit."""
    unit, cells = sized(size for _, sizes in rows for size in sizes)
    width = len(heads)
    table_rows = [[role, *cells[row * width :][:width]] for row, (role, _) in enumerate(rows)]
    return Table(title, [Column("Role"), *(Column(head, unit) for head in heads)], table_rows)


def _count(count: float) -> float | int:
    """Return a mean of counts, as an integer if it is one."""
    return int(count) if float(count).is_integer() else count


def _columns(heading: str) -> list[Column]:
    return [Column(heading), Column("Calls"), Column("Time", "µs"), Column("Share", "%")]
