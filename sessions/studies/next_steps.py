"""A ranked list of what to try next, with an upper bound of each gain, from measurements.

Every bound follows from one rule: *an option can save at most the time that it acts on, less the
time which that work needs in any case*. With a step of ``T`` and savings of at most ``S`` the
speed-up is at most ``T / (T - S)``. ``S`` is

* for host-bound steps of a GPU the idle time of an *unprofiled* step, unless it is replayed from
  graphs; on a CPU the own time of Python and of autograd's engine in the profile, whose profiler
  only lengthens it;
* for an operator of the kernel library its time less its least time at the measured ceilings;
* for the optimizer the time of its phase less its least time;
* for fusion the time of elementwise, normalisation, reduction and copy kernels: a neighbour may
  absorb all of it;
* for 16-bit precision the time of matrix products less their FLOPs at the measured 16-bit rate,
  and half of the other kernels' time, because the bytes halve;
* for waiting on input all of the wait.

Savings are bounds, not predictions, and bounds of different options do not add up. Nothing is
proposed that is on already, that had no effect, or that a verdict of the session found not faster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from sessions.ceilings import UTILIZATION, utilization
from sessions.model import Configuration, Segment, Session, Study
from sessions.numbers import Cell, percent_text
from sessions.sizes import size_text
from sessions.studies import breakdown
from sessions.tables import Column, Table
from sessions.verdicts import statistics

MOST = 5  # suggestions
LEAST_SPEEDUP = 1.02  # a bound below this is not worth a line
_LEAST_MEMORY_SHARE = 0.4  # least share of activations in the peak that is reported
_FUSED = ("elementwise", "normalisation", "reduction", "copy", "view", "indexing")
_SIXTEEN_BITS = ("bfloat16", "float16")
_SAME, _SLOWER = "SAME", "SLOWER"


@dataclass(frozen=True)
class Option:
    """An option of a toggle, and how a sentence calls it."""

    toggle: str
    option: str
    title: str
    needs_gpu: bool = False


@dataclass(frozen=True)
class Suggestion:
    """A finding, what to try, and the most that it can give."""

    finding: str
    options: tuple[Option, ...] = ()  # the preferred first; the first is what is applied
    speedup: float = math.nan  # upper limit
    saved_bytes: float = math.nan  # upper limit
    advice: str = ""  # advice if there is no option
    details: tuple[tuple[str, float, float], ...] = ()  # quantity, measured and least microseconds

    @property
    def text(self) -> str:
        """The suggestion in one line."""
        action = self.options[0].title if self.options else self.advice
        if math.isfinite(self.speedup):
            gain = f", up to {speedup_text(self.speedup)}"
        elif math.isfinite(self.saved_bytes):
            gain = f", frees up to {size_text(self.saved_bytes)}"
        else:
            gain = ""
        return f"{self.finding}: {action}{gain}"

    @property
    def toggles(self) -> dict[str, str]:
        """The option that Apply chooses, by toggle; empty if there is none."""
        return {self.options[0].toggle: self.options[0].option} if self.options else {}

    def table(self) -> Table:
        """Return the times that the bound follows from."""
        rows: list[list[Cell]] = [[name, measured, least] for name, measured, least in self.details]
        columns = [Column("Time of a step"), Column("Measured", "µs"), Column("At least", "µs")]
        return Table(self.text, columns, rows)


Usable = Callable[[Option], bool]
_COMPILED = Option("compile", "default", "torch.compile")
_GRAPHS = Option("cuda_graphs", "on", "CUDA graphs", needs_gpu=True)
_REPLAYED = ("reduce-overhead", "max-autotune")  # options of compilation that replay graphs


def speedup_text(speedup: float) -> str:
    """Return a bound with no more digits than it deserves, rounded up."""
    digits = 1 if speedup >= 1.2 else 2
    factor = 10**digits
    return f"{math.ceil(speedup * factor - 1e-9) / factor:.{digits}f}x"


def suggest(
    session: Session, study: Study | None = None, usable: Usable | None = None
) -> list[Suggestion]:
    """Return the suggestions for a profile, or without any for the last segment; best first.

    ``usable``: return False for an option that cannot be used here.
    """
    if study is None:
        studies = breakdown.profiles(session)
        study = studies[-1] if studies else None
    if study is None:
        return _without_profile(session)
    facts = _Facts(session, study, usable)
    rules = (_host, _input, _operators, _optimizer, _fusion, _precision, _memory)
    raw = [entry for rule in rules for entry in rule(facts)]
    worth = [
        entry for entry in raw if entry.speedup >= LEAST_SPEEDUP or math.isfinite(entry.saved_bytes)
    ]
    ranked = sorted(worth, key=lambda entry: -(entry.speedup if entry.speedup > 0 else 0.0))
    return [*_distinct(ranked), *_ineffective(session)][:MOST]


def lines(session: Session, study: Study | None = None, most: int = 3) -> list[str]:
    """Return the best suggestions as lines of the command line."""
    return [f"try next: {entry.text}" for entry in suggest(session, study)[:most]]


class _Facts:
    """The measurements that the rules read: times of a step in microseconds."""

    def __init__(self, session: Session, study: Study, usable: Usable | None) -> None:
        self.study = study
        self.on_gpu = study.request.get("device") != "cpu"
        self.kinds = {kind: us for kind, (_, us) in breakdown.by(study, "kind").items()}
        self.phases = {phase: us for phase, (_, us) in breakdown.by(study, "phase").items()}
        self.rows = breakdown.achieved(study)
        self.total_us = breakdown.total_us(study)
        self.idle = breakdown.idle_share(study)
        step_us = study.facts.get("step_us")
        known = self.on_gpu and isinstance(step_us, int | float) and step_us > 0
        self.step_us = max(float(step_us), self.total_us) if known else self.total_us  # type: ignore[arg-type]
        self.configuration = _configuration(study)
        self._refused = _refused(session)
        self._usable = usable

    def options(self, *options: Option) -> tuple[Option, ...]:
        """Return those of the options that are worth a try here."""
        return tuple(option for option in options if self._is_worth(option))

    def speedup(self, saved_us: float) -> float:
        """Return the bound of the speed-up for savings of at most this."""
        left = self.step_us - min(max(saved_us, 0.0), 0.99 * self.step_us)
        return self.step_us / left if left > 0 else math.nan

    @property
    def is_captured(self) -> bool:
        """True if the step is replayed from CUDA graphs, so that the GPU waits for no launches."""
        toggles = {} if self.configuration is None else self.configuration.toggles
        is_replayed = toggles.get(_COMPILED.toggle) in _REPLAYED
        return is_replayed or toggles.get(_GRAPHS.toggle) == _GRAPHS.option

    def _is_worth(self, option: Option) -> bool:
        if self.configuration is None or (option.needs_gpu and not self.on_gpu):
            return False
        current = self.configuration.toggles.get(option.toggle, "")
        if option == _COMPILED and current not in ("", "off"):
            return False  # the step is compiled already
        if current == option.option or (option.toggle, option.option) in self._refused:
            return False
        return self._usable is None or self._usable(option)


def _host(facts: _Facts) -> list[Suggestion]:
    """Suggest options that shorten the host's part."""
    if facts.on_gpu:
        if not facts.idle > 0 or facts.is_captured:
            return []
        share, saved_us = facts.idle, facts.idle * facts.step_us
        finding = f"{percent_text(share)} host-bound"
        details = [("GPU idle in an unprofiled step", saved_us, 0.0), *_longest_gaps(facts.study)]
    else:
        saved_us = facts.kinds.get("host", 0.0)
        share = saved_us / facts.total_us if facts.total_us else 0.0
        finding = f"{percent_text(share)} in Python and autograd"
        details = [("Python and autograd's engine", saved_us, 0.0)]
    options = facts.options(
        _GRAPHS,
        Option(_COMPILED.toggle, _REPLAYED[0], "torch.compile with graphs", needs_gpu=True),
        _COMPILED,
    )
    advice = "a larger batch"
    return [Suggestion(finding, options, facts.speedup(saved_us), math.nan, advice, (*details,))]


def _longest_gaps(study: Study) -> list[tuple[str, float, float]]:
    table = study.tables.get("gaps", {})
    if not table:
        return []
    rows = sorted(zip(table["module"], table["us"], strict=True), key=lambda row: -float(row[1]))
    return [(f"waiting before {module}", float(us), 0.0) for module, us in rows[:3]]


def _input(facts: _Facts) -> list[Suggestion]:
    """Suggest more loading where a script waits for input."""
    wait_us = facts.kinds.get(breakdown.INPUT_WAIT, 0.0)
    if not wait_us:
        return []
    finding = f"{percent_text(wait_us / facts.step_us)} waiting for input"
    details = (("waiting for input", wait_us, 0.0),)
    speedup = facts.speedup(wait_us)
    return [Suggestion(finding, (), speedup, math.nan, "more loader workers", details)]


def _operators(facts: _Facts) -> list[Suggestion]:
    """Suggest fused kernels for operators of the library far below their roof."""
    slow = [
        row for row in facts.rows if row.name not in breakdown.KINDS and row.us > row.least_us > 0
    ]
    if not slow:
        return []
    worst = max(slow, key=lambda row: row.us - row.least_us)
    fused_worst = Option(f"triton_{worst.name}", "triton", f"Triton {worst.name}", needs_gpu=True)
    every = Option("triton", "on", "Triton kernels", needs_gpu=True)
    saved_all = sum(row.us - row.least_us for row in slow)
    details = tuple((row.name, row.us, row.least_us) for row in slow[:8])
    finding = f"{worst.name} at {percent_text(worst.share)} of attainable"
    suggestions = []
    if options := facts.options(every, _COMPILED):
        suggestions.append(Suggestion(finding, options, facts.speedup(saved_all), details=details))
    elif options := facts.options(fused_worst):
        saved = worst.us - worst.least_us
        suggestions.append(Suggestion(finding, options, facts.speedup(saved), details=details[:1]))
    return suggestions


def _optimizer(facts: _Facts) -> list[Suggestion]:
    """Suggest the fused optimizer."""
    took_us = facts.phases.get("optimizer", 0.0)
    least_us = next((row.least_us for row in facts.rows if row.name == "optimizer"), math.nan)
    least_us = least_us if math.isfinite(least_us) else 0.0
    options = facts.options(Option("adamw", "fused", "fused AdamW"))
    if not took_us > least_us or not options:
        return []
    finding = f"{percent_text(took_us / facts.step_us)} in the optimizer"
    details = (("optimizer", took_us, least_us),)
    return [Suggestion(finding, options, facts.speedup(took_us - least_us), details=details)]


def _fusion(facts: _Facts) -> list[Suggestion]:
    """Suggest compilation for kernels that only move memory."""
    parts = [(kind, facts.kinds[kind], 0.0) for kind in _FUSED if facts.kinds.get(kind)]
    saved_us = sum(us for _, us, _ in parts)
    options = facts.options(_COMPILED)
    if not options:
        return []
    finding = f"{percent_text(saved_us / facts.step_us)} in kernels that could be fused"
    return [Suggestion(finding, options, facts.speedup(saved_us), details=(*parts,))]


def _precision(facts: _Facts) -> list[Suggestion]:
    """Suggest 16 bits where matrix products have 32 and the device is faster in 16."""
    _, rates = breakdown.ceilings(facts.study)
    configuration = facts.configuration
    if configuration is None or configuration.toggles.get("precision") not in ("fp32", "tf32"):
        return []
    sixteen = max((rates.get(name, 0.0) for name in _SIXTEEN_BITS), default=0.0)
    slow = max((rates.get(name, 0.0) for name in ("tf32", "float32")), default=0.0)
    least = facts.study.tables.get("least", {})
    names = [str(name) for name in least.get("name", ())]
    took_us = facts.kinds.get("matrix product", 0.0)
    if not sixteen > slow > 0 or "matrix product" not in names or not took_us:
        return []
    flops = float(least["flops"][names.index("matrix product")])
    least_us = min(1e6 * flops / sixteen, took_us)
    others_us = facts.total_us - took_us - facts.kinds.get("host", 0.0)
    saved_us = took_us - least_us + max(others_us, 0.0) / 2
    options = facts.options(Option("precision", "amp_bf16", "BF16 autocast"))
    finding = f"{percent_text(took_us / facts.step_us)} in 32-bit matrix products"
    details = (("matrix product", took_us, least_us), ("other kernels", others_us, others_us / 2))
    return [Suggestion(finding, options, facts.speedup(saved_us), details=details)] * bool(options)


def _memory(facts: _Facts) -> list[Suggestion]:
    """Suggest checkpointing where activations are most of the peak."""
    sizes = {role: size for role, (size, _) in breakdown.peak(facts.study).items()}
    total, activations = sum(sizes.values()), sizes.get("activations", 0.0)
    options = facts.options(Option("checkpointing", "full", "checkpointing"))
    if not total or activations / total < _LEAST_MEMORY_SHARE or not options:
        return []
    if facts.configuration is None or facts.configuration.toggles.get("checkpointing") != "none":
        return []
    finding = f"{percent_text(activations / total)} of memory in activations"
    return [Suggestion(finding, options, saved_bytes=activations)]


def _ineffective(session: Session) -> list[Suggestion]:
    """List options of the last segment that changed nothing, with the reason."""
    if not session.segments:
        return []
    return [
        Suggestion(f"{row.toggle}={row.requested} has no effect", advice=row.text)
        for row in session.segments[-1].evidence
        if row.status == "no effect"
    ]


def _distinct(ranked: Sequence[Suggestion]) -> list[Suggestion]:
    """Return the suggestions without options that a better one has already named."""
    suggested: set[tuple[str, str]] = set()
    distinct = []
    for entry in ranked:
        left = tuple(o for o in entry.options if (o.toggle, o.option) not in suggested)
        if entry.options and not left:
            continue
        suggested |= {(o.toggle, o.option) for o in left}
        distinct.append(dataclasses.replace(entry, options=left))
    return distinct


def _without_profile(session: Session) -> list[Suggestion]:
    """Suggest a profile if the last segment is far from the measured matrix rate."""
    segment = next((s for s in reversed(session.segments) if len(s.steps["t_s"])), None)
    if segment is None:
        return []
    share = _utilization(segment)
    speedup = 1 / share if 0 < share < 1 else math.nan
    suggestions = []
    if speedup >= LEAST_SPEEDUP:
        finding = f"{UTILIZATION} {percent_text(share)}"
        advice = "profile these steps (workbench profile) to see where the rest goes"
        suggestions.append(Suggestion(finding, (), speedup, advice=advice))
    return [*suggestions, *_ineffective(session)][:MOST]


def _utilization(segment: Segment) -> float:
    return utilization(segment, statistics.summarize(statistics.steady_ms(segment)).median)


def _configuration(study: Study) -> Configuration | None:
    """Return the profiled configuration; None for a script or another program's trace."""
    try:
        return msgspec.json.decode(str(study.request.get("configuration", "")), type=Configuration)
    except msgspec.MsgspecError:
        return None


def _refused(session: Session) -> set[tuple[str, str]]:
    """Return the options that had no effect, failed, or that a verdict found not faster."""
    refused = {
        (row.toggle, row.requested)
        for segment in session.segments
        for row in segment.evidence
        if row.status in ("no effect", "failed")
    }
    for comparison in session.comparisons:
        numbers = comparison.facts.get("segments", [])
        if len(numbers) != 2 or comparison.verdict not in (_SAME, _SLOWER):
            continue
        before, after = (session.segments[number].configuration.toggles for number in numbers)
        changed = [item for item in after.items() if before.get(item[0]) != item[1]]
        if len(changed) == 1:
            refused.add(changed[0])
    return refused
