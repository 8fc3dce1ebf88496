"""Time and memory of a step by module and kernel: a profile as a study, and its sentences.

A profile is a ``Study`` of kind ``"profile"``, of one configuration. Its tables:

``kernels``: a row for each kernel (operator, on the CPU), module and phase, of one step:
``name``, ``module``, ``phase`` (forward, backward, recompute, optimizer, replay, input, or step for
all else), ``kind`` (operator class), ``operator`` (of the kernel library, or empty), ``calls``,
``us``. A kernel that computes for several modules belongs to the innermost module that contains
them all.
``least``: the least work and time of a step's operators at the device's measured ceilings:
``name`` (an operator of the library, or a class for all other operators), ``calls``, ``bytes``,
``flops``, ``us``.
``memory``: bytes over one step: ``t_ms`` since its start, ``reserved``, and a column for each role.
``peak``: bytes by ``role`` at the moment of most allocated memory: ``bytes``, and ``estimate``
from the model's sizes (NaN if there is none).
``gaps``: how long the GPU waited for the next kernel of a ``module``: ``count``, ``us``, including
the profiler's own cost.
``timeline``, ``labels``, ``tracks``: events of the profiled steps (``sessions.studies.timeline``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sessions.columns import row_count
from sessions.model import PROFILE, Session, Study
from sessions.numbers import LARGEST, percent_text
from sessions.tracing.kinds import kind_of

KIND = PROFILE
ROLE_TITLES = {
    "parameters": "parameters and buffers",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations kept for backward",
    "workspace": "workspace and temporaries",
    "other": "inputs, caches, other arms",
    "private_pools": "private pools of CUDA graphs",
}
ROLES = tuple(ROLE_TITLES)
_SUMMED = ("kernels", "least", "peak", "gaps", "memory")  # tables
INPUT_WAIT = "input wait"  # a training script waits for its next batch
# Operator classes, those that take most time in most models first.
KINDS = (
    "matrix product",
    "attention",
    "elementwise",
    "normalisation",
    "copy",
    "optimizer",
    "host",
    "reduction",
    "fused by Inductor",
    "scan",
    "routing",
    "indexing",
    "communication",
    "convolution",
    "transform",
    "view",
    INPUT_WAIT,
    "other",
)
# Kinds of the tracks of a timeline.
STEP_TRACK, HOST_TRACK, LAUNCH_TRACK, STREAM_TRACK = "steps", "host", "launches", "stream"
# Names for time that belongs to no module of the model.
OUTSIDE = "(step)"
INPUT = "(input)"
LOSS = "(loss)"
OPTIMIZER = "(optimizer)"
GRADIENTS = "(gradient accumulation)"
COMPILED = "(compiled code)"
REPLAYED = "(CUDA graph)"
UNKNOWN = "(unknown)"
_UNATTRIBUTED = (COMPILED, REPLAYED, UNKNOWN)
WATCHED = "watched"  # the fact of a profile that a run of a training script recorded automatically
COMPILED_SHARE = 0.05  # share of compiled code; with less, modules still show what changed
NO_FLOPS = 0.05  # FLOP for each byte at which work without FLOPs is drawn
OVER_THE_ROOF = 1.1  # times the ceiling: more than the ceilings' own noise
LAUNCH_BOUND = 0.1  # share of the step without work for the GPU; less is not reported


@dataclass
class Node:
    """A module: its own time by operator class, and the modules in it; microseconds a step."""

    name: str  # the last part of its path
    path: str
    kinds: dict[str, float] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def own_us(self) -> float:
        """Time of the module itself, without the modules in it."""
        return sum(self.kinds.values())

    @property
    def total_us(self) -> float:
        """Time of the module and of the modules in it."""
        return self.own_us + sum(child.total_us for child in self.children.values())


@dataclass(frozen=True)
class Change:
    """The time of a module, or a class, in two profiles; NaN if one of them lacks it."""

    module: str
    before_us: float
    after_us: float

    @property
    def difference_us(self) -> float:
        """Time after less time before; 0 for a missing module."""
        return float(np.nan_to_num(self.after_us) - np.nan_to_num(self.before_us))


def profiles(session: Session) -> list[Study]:
    """Return the session's profiles, the newest last, that have kernels to show."""
    return [study for study in stored(session) if is_possible(study)]


def stored(session: Session) -> list[Study]:
    """Return all profiles with kernels, those with impossible numbers too."""
    return [study for study in session.studies if study.kind == KIND and "kernels" in study.tables]


def is_possible(study: Study) -> bool:
    """Return True if the numbers of a profile are unknown, or amounts that can be added up."""
    tables = (study.tables.get(name, {}) for name in _SUMMED)
    columns = (np.asarray(values) for table in tables for values in table.values())
    numbers = (column for column in columns if column.dtype.kind in "fiu")
    return not any(((column < 0) | (column > LARGEST)).any() for column in numbers)


def total_us(study: Study) -> float:
    """Return the time of all kernels of a step."""
    return float(np.sum(study.tables["kernels"]["us"]))


def by(study: Study, column: str) -> dict[str, tuple[float, float]]:
    """Return calls and microseconds a step by ``name``, ``kind``, ``phase`` or ``module``."""
    table = study.tables["kernels"]
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for key, calls, us in zip(table[column], table["calls"], table["us"], strict=True):
        sums[str(key)][0] += float(calls)
        sums[str(key)][1] += float(us)
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    return {key: (calls, us) for key, (calls, us) in ordered}


@dataclass(frozen=True)
class Achieved:
    """The time of an operator, or all others of a class, in a step, and the least that it needs."""

    name: str
    calls: float  # calls of the operator, not of its kernels; NaN if unknown
    us: float
    least_us: float  # least time at the measured ceilings; NaN if unknown

    @property
    def share(self) -> float:
        """Return how near it is to the roof: 1 on it, above 1 if its data was in a cache."""
        return self.least_us / self.us if self.us > 0 else float("nan")


def achieved(study: Study) -> list[Achieved]:
    """Each operator's time against its least, the longest first; empty for an older profile."""
    table, least = study.tables["kernels"], study.tables.get("least", {})
    if "operator" not in table or not least:
        return []
    us_by_operator: dict[str, float] = defaultdict(float)
    for operator, kind, us in zip(table["operator"], table["kind"], table["us"], strict=True):
        us_by_operator[str(operator) or str(kind)] += float(us)
    columns = (least["name"], least["calls"], least["us"])
    known = {str(name): (float(n), float(us)) for name, n, us in zip(*columns, strict=True)}
    nothing = (float("nan"), float("nan"))
    rows = [Achieved(name, known.get(name, nothing)[0], us, known.get(name, nothing)[1])
             for name, us in us_by_operator.items()]  # fmt: skip
    return sorted(rows, key=lambda row: -row.us)


def shares_by_kernel(study: Study) -> dict[str, float]:
    """Return by kernel what its operator, or its class, reaches of what is attainable.

    NaN for a kernel of several operators or classes, or of one whose least time is not known.
    """
    shares = {row.name: row.share for row in achieved(study)}
    table = study.tables["kernels"]
    if not shares:
        return {}
    groups: dict[str, set[str]] = defaultdict(set)
    for name, operator, kind in zip(table["name"], table["operator"], table["kind"], strict=True):
        groups[str(name)].add(str(operator) or str(kind))
    unknown = float("nan")
    return {
        name: shares.get(next(iter(group)), unknown) if len(group) == 1 else unknown
        for name, group in groups.items()
    }


@dataclass(frozen=True)
class RoofPoint:
    """An operator of the library, or all others of a class, under the roof."""

    name: str
    kind: str
    us: float
    intensity: float  # FLOP for each byte; ``NO_FLOPS`` for work without any
    achieved: float  # FLOP/s
    share: float  # share of the attainable rate; above 1 if its data was in a cache


def ceilings(study: Study) -> tuple[float, dict[str, float]]:
    """Return the bytes/s of a large copy, and the FLOP/s of a large matrix product by dtype.

    NaN and nothing if the profile does not state the ceilings.
    """
    names, rates = (study.facts.get(f"ceiling_{name}", []) for name in ("dtypes", "flops_per_s"))
    known = isinstance(names, list) and isinstance(rates, list) and len(names) == len(rates)
    flops = dict(zip(map(str, names), map(float, rates), strict=True)) if known else {}  # type: ignore[arg-type]
    return _number(study.facts, "ceiling_bytes_per_s"), flops


def roof_points(study: Study) -> list[RoofPoint]:
    """Return every operator whose work is known; empty for an older or a foreign profile."""
    rate, flops = ceilings(study)
    least = study.tables.get("least", {})
    if not (rate > 0 and flops and least):
        return []
    columns = (least[name] for name in ("name", "bytes", "flops"))
    work = {str(name): (float(b), float(f)) for name, b, f in zip(*columns, strict=True)}
    points = []
    for row in achieved(study):
        moved, operations = work.get(row.name, (0.0, 0.0))
        if moved > 0 and row.us > 0:
            intensity = max(operations / moved, NO_FLOPS)
            achieved_rate = intensity * moved / (1e-6 * row.us)
            points.append(
                RoofPoint(
                    row.name,
                    row.name if row.name in KINDS else kind_of(row.name),
                    row.us,
                    intensity,
                    achieved_rate,
                    row.share,
                )
            )
    return points


def tree(study: Study) -> Node:
    """Return the modules of a profile as they lie in one another, the complete step at the root."""
    root = Node("step", "")
    table = study.tables["kernels"]
    for module, kind, us in zip(table["module"], table["kind"], table["us"], strict=True):
        module, node = str(module), root
        # A name in parentheses is not a path, and the model itself contains all of its modules.
        parts = [module] if module.startswith("(") else ["(model)", *module.split(".")]
        for depth, part in enumerate(parts):
            path = module if len(parts) == 1 else ".".join(parts[1 : depth + 1]) or part
            node = node.children.setdefault(part, Node(part, path))
        node.kinds[str(kind)] = node.kinds.get(str(kind), 0.0) + float(us)
    return root


def totals(study: Study) -> dict[str, float]:
    """Microseconds a step by module, with all that is in it."""
    sums: dict[str, float] = {}
    waiting = [tree(study)]
    while waiting:
        node = waiting.pop()
        waiting += node.children.values()
        if node.path:
            sums[node.path] = node.total_us
    return sums


def not_by_module(before: Study, after: Study) -> str:
    """Return why two profiles cannot be aligned by module, as a sentence; empty if they can."""
    shares = [_compiled_share(profile) for profile in (before, after)]
    sides = [side for side, share in zip("AB", shares, strict=True) if share > COMPILED_SHARE]
    if not sides:
        return ""
    return (
        f"Aligned by class: {percent_text(max(shares))} of {' and '.join(sides)} is compiled code "
        "that could not be assigned to modules; the notes of the profile say why."
    )


def _compiled_share(study: Study) -> float:
    """Return the share of time in compiled code of no module, host calls excluded."""
    table = study.tables["kernels"]
    lost = (table["module"] == COMPILED) & (table["kind"] != "host")
    return float(np.sum(table["us"][lost])) / (total_us(study) or 1.0)


def difference(before: Study, after: Study, column: str = "module") -> list[Change]:
    """Two profiles aligned by ``module``, or by ``kind``, the largest change first."""
    if column == "module":
        sides = totals(before), totals(after)
    else:
        pairs = by(before, column), by(after, column)
        sides = (
            {k: us for k, (_, us) in pairs[0].items()},
            {k: us for k, (_, us) in pairs[1].items()},
        )
    names = dict.fromkeys([*sides[0], *sides[1]])
    changes = [
        Change(name, sides[0].get(name, float("nan")), sides[1].get(name, float("nan")))
        for name in names
    ]
    return sorted(changes, key=lambda change: -abs(change.difference_us))


def unattributed(study: Study) -> float:
    """Return the share of the time that no module can be named for, 0 to 1."""
    total = total_us(study)
    modules = by(study, "module")
    lost = sum(modules[name][1] for name in _UNATTRIBUTED if name in modules)
    return lost / total if total else 0.0


def idle_share(study: Study) -> float:
    """Return the share of an unprofiled step in which the GPU was idle; NaN on the CPU."""
    step_us, busy_us = (_number(study.facts, name) for name in ("step_us", "busy_us"))
    share = 1 - busy_us / step_us if step_us > 0 else float("nan")
    return float(np.maximum(share, 0.0))  # NaN stays NaN


def words(study: Study) -> list[str]:
    """Return what the profile says, in sentences; the first is the most important."""
    facts = study.facts
    lines = []
    idle = idle_share(study)
    if np.isfinite(idle):
        lines.append(_waiting(idle, _number(facts, "step_us")))
    kinds = by(study, "kind")
    total = total_us(study)
    if kinds and total:
        shares = [f"{name} {percent_text(us / total)}" for name, (_, us) in list(kinds.items())[:4]]
        lines.append(f"Most time: {', '.join(shares)}.")
    lost = unattributed(study)
    if lost > 0.005:
        lines.append(f"{percent_text(lost)} of the time cannot be assigned to a module.")
    if over := [row.name for row in achieved(study) if row.share > OVER_THE_ROOF]:
        lines.append(
            f"Faster than the measured roof: {', '.join(over)}. Their data may come from a cache, "
            "which is faster than memory; if it cannot, measure the ceilings again."
        )
    if why := facts.get("no_least"):
        which = "some" if study.tables.get("least") else "the"
        lines.append(f"The attainable time of {which} operators is not known: {why}.")
    notes = facts.get("notes", [])
    lines += [str(note) for note in notes if note] if isinstance(notes, list) else []
    return lines


def peak(study: Study) -> dict[str, tuple[float, float]]:
    """Bytes measured and estimated by role, where most was allocated."""
    table: Mapping[str, np.ndarray] = study.tables.get("peak", {})
    if not table:
        return {}
    columns = (table["role"], table["bytes"], table["estimate"])
    return {str(r): (float(b), float(e)) for r, b, e in zip(*columns, strict=True)}


def highest(study: Study) -> dict[str, float]:
    """Return the most bytes that each role held at any time of the step, its own peak."""
    table = study.tables.get("memory", {})
    return {role: float(np.max(table[role])) for role in ROLES if len(table.get(role, ()))}


def fragmentation(study: Study) -> float:
    """Bytes reserved at the peak that nothing is in: NaN where no allocator reserves."""
    table = study.tables.get("memory", {})
    if not row_count(table):
        return float("nan")
    allocated = np.sum([np.asarray(table[role], np.float64) for role in ROLES], axis=0)
    peak = int(np.argmax(allocated))
    reserved = float(table["reserved"][peak])
    return max(0.0, reserved - float(allocated[peak])) if reserved > 0 else float("nan")


def _waiting(idle: float, step_us: float) -> str:
    spare = f"{idle * step_us / 1e3:.2f} ms of {step_us / 1e3:.2f} ms"
    if idle < LAUNCH_BOUND:
        return f"The GPU works {percent_text(1 - idle)} of the step: it is not launch-bound."
    return (
        f"Launch-bound: in {percent_text(idle)} of the step ({spare}) the GPU waits for the host."
    )


def _number(facts: Mapping[str, object], name: str) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) else float("nan")
