"""Dynamo's compilations while a variant ran: graphs, where they break, what recompiled and why.

Dynamo keeps a record of every frame that it compiles. A code object that exceeds the recompile
limit runs in eager mode from then on, with only a line in the log. The records are read before and
after a variant is active, so the new ones belong to that variant.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sessions.numbers import counted
from workbench.runner.profiling.probes import graphs as graph_probe
from workbench.runner.profiling.probes import recordings
from workbench.runner.profiling.probes.graphs import Break
from workbench.runner.training.optimizers import EIGHT_BIT

RECORDS = 4096  # compile records that Dynamo keeps; its default is 64
_SHOWN = 3  # items of one kind that a sentence lists


@dataclass
class Compiles:
    """The compilations while ``following()``; all empty if there were none."""

    graphs: int = 0
    breaks: list[Break] = field(default_factory=list)  # one for each line
    cudagraph_skips: int = 0
    skip_reasons: Counter[str] = field(default_factory=Counter)  # reasons of the skips
    recordings: int = 0  # CUDA graphs that Inductor recorded
    recompiles: list[str] = field(default_factory=list)  # each with its reason
    given_up: list[str] = field(default_factory=list)  # why code objects now run in eager mode
    _mark: _Mark | None = None
    _ignores: bool = False

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Count everything that is compiled inside; may be nested."""
        if self._mark is not None:
            yield
            return
        self._mark = _Mark.now()
        try:
            with recordings.skips(self.skip_reasons):
                yield
        finally:
            self.read()
            self._mark = None

    def read(self) -> Compiles:
        """Add what was compiled since the last call; return these counts."""
        if self._mark is not None:
            before, self._mark = self._mark, _Mark.now()
            if not self._ignores:
                self._add(before, self._mark)
        return self

    @contextlib.contextmanager
    def ignoring(self) -> Iterator[None]:
        """Ignore what is compiled inside: it belongs to a check, not to the steps."""
        self.read()
        self._ignores = True
        try:
            yield
        finally:
            self.read()
            self._ignores = False

    def text(self) -> str:
        """Return graphs, breaks and recompiles, counted, with lines and reasons."""
        parts = [counted(self.graphs, "graph") + " compiled"]
        location = f" at {_first([str(break_) for break_ in self.breaks])}" if self.breaks else ""
        parts.append(counted(len(self.breaks), "graph break") + location)
        recompiles = counted(len(self.recompiles), "recompile")
        because = f" because {_first(self.recompiles)}" if self.recompiles else ""
        return ", ".join([*parts, recompiles + because])

    def graphs_text(self) -> str:
        """Return the CUDA graphs that Inductor recorded, and those it left out with its reasons."""
        text = f"{counted(self.recordings, 'CUDA graph')} recorded"
        if not self.cudagraph_skips:
            return text
        reasons = _first([reason for reason, _ in self.skip_reasons.most_common()])
        because = f" because of {reasons}" if reasons else ", and Inductor gave no reason"
        return f"{text}, skipped {counted(self.cudagraph_skips, 'time')}{because}"

    def _add(self, before: _Mark, after: _Mark) -> None:
        new = [
            break_ for break_ in graph_probe.breaks_since(before.breaks) if not _of_library(break_)
        ]
        self.breaks = graph_probe.by_place([*self.breaks, *new])
        self.cudagraph_skips += after.cudagraph_skips - before.cudagraph_skips
        self.recordings += len(after.recorded - before.recorded)
        for record in _records_since(before.last_record):
            self._add_record(record)

    def _add_record(self, record: Any) -> None:
        if _compiles_itself(record.co_filename):
            return
        self.graphs += bool(record.has_guarded_code and record.graph_op_count)
        function = f"{_file(record.co_filename)}:{record.co_firstlineno} in {record.co_name}"
        if record.recompile_reason and record.has_guarded_code:
            reason = without_id(record.recompile_reason.partition("\n")[0])
            self.recompiles.append(f"{reason} ({function})")
        if record.fail_reason and "limit" in record.fail_reason:
            _append(self.given_up, record.fail_reason.partition("\n")[0])


@dataclass(frozen=True)
class _Mark:
    """Dynamo's counts and its last record at one moment."""

    breaks: int
    cudagraph_skips: int
    recorded: frozenset[Hashable]  # CUDA graphs
    last_record: Any

    @classmethod
    def now(cls) -> _Mark:
        if "torch._dynamo" not in sys.modules:  # importing it costs seconds; nothing was compiled
            return cls(0, 0, frozenset(), None)
        counters = torch._dynamo.utils.counters
        records = torch._dynamo.utils.get_compilation_metrics()
        return cls(
            graph_probe.mark(),
            counters["inductor"]["cudagraph_skips"],
            recordings.recorded(),
            records[-1] if records else None,
        )


def keep_records() -> None:
    """Let Dynamo keep enough of its records; imports it."""
    import torch._dynamo.utils

    torch._dynamo.utils.set_compilation_metrics_limit(RECORDS)


def without_id(reason: str) -> str:
    """Return a guard's failure without the number of the graph that it guards."""
    return re.sub(r"^\W*\d+/\d+: ", "", reason)


def _records_since(last: Any) -> list[Any]:
    if "torch._dynamo" not in sys.modules:
        return []
    records = torch._dynamo.utils.get_compilation_metrics()
    indices = [index for index, record in enumerate(records) if record is last]
    return records[indices[-1] + 1 :] if indices else records


def _of_library(break_: Break) -> bool:
    return break_.line is not None and _compiles_itself(break_.line.file)


def _compiles_itself(file: str | None) -> bool:
    """Return True if a file is that of an optimizer which compiles its own step."""
    return not set(EIGHT_BIT).isdisjoint(Path(file or "").parts)


def _append(texts: list[str], text: str) -> None:
    if text not in texts:
        texts.append(text)


def _file(path: str | None) -> str:
    return Path(path).name if path else "?"


def _first(texts: Sequence[str]) -> str:
    different = list(dict.fromkeys(texts))
    more_text = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return "; ".join(different[:_SHOWN]) + more_text
