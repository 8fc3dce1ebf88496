"""Where torch.compile broke a model into several graphs, and why it compiled a function again.

Both are read from what Dynamo keeps of its own work, so looking costs a running arm nothing. What
is not compiled can be traced by itself, without generating any code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from kernels import own_code
from workbench.runner.probes import _lines
from workbench.runner.probes._lines import Line


class GraphFinding(NamedTuple):
    """A graph break, or another compilation of a function; ``line`` is None where not known."""

    reason: str
    line: Line | None

    def __str__(self) -> str:
        return f"{self.line}: {self.reason}" if self.line else self.reason


class Mark(NamedTuple):
    """A moment in Dynamo's work."""

    breaks: int
    last: Any  # the last compilation before it


class Traced(NamedTuple):
    """What tracing alone showed."""

    graphs: int
    breaks: list[GraphFinding]


def mark() -> Mark:
    """Now. Does not load Dynamo, which takes seconds."""
    if "torch._dynamo" not in sys.modules:
        return Mark(0, None)
    utils = torch._dynamo.utils
    compilations = utils.get_compilation_metrics()
    return Mark(len(utils.graph_break_reasons), compilations[-1] if compilations else None)


def breaks_since(start: Mark) -> list[GraphFinding]:
    """The graph breaks since then, each place once."""
    if "torch._dynamo" not in sys.modules:
        return []
    reasons = torch._dynamo.utils.graph_break_reasons
    new = reasons[start.breaks :] if len(reasons) >= start.breaks else reasons
    return by_place(
        GraphFinding(_tidy(each.reason), _lines.innermost(each.user_stack)) for each in new
    )


def compilations_since(start: Mark) -> list[GraphFinding]:
    """What was compiled since then, each with the guard that had failed."""
    if "torch._dynamo" not in sys.modules:
        return []
    new = torch._dynamo.utils.get_compilation_metrics()
    for place in reversed(range(len(new))):
        if new[place] is start.last:
            new = new[place + 1 :]
            break
    return [
        GraphFinding(
            _tidy(each.recompile_reason or "compiled for the first time"),
            _lines.line(each.co_filename, each.co_firstlineno or 0, each.co_name or "")
            if each.co_filename
            else None,
        )
        for each in new
    ]


def trace(compute: Callable[..., Any], inputs: Iterable[Any]) -> Traced:
    """Run ``compute`` once under Dynamo with a compiler that only counts; raises what it raises."""
    from torch import _dynamo  # seconds: only where one asks

    graphs = 0

    def count(graph: Any, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    start = mark()
    with _dynamo.config.patch(suppress_errors=False):
        torch.compile(own_code(compute), backend=count, dynamic=False)(*inputs)
    return Traced(graphs, breaks_since(start))


def by_place(found: Iterable[GraphFinding]) -> list[GraphFinding]:
    """The first of each line, or of each reason where the line is not known."""
    return list({each.line or each.reason: each for each in reversed(list(found))}.values())[::-1]


def _tidy(reason: str) -> str:
    """Dynamo's reason in one line, without its numbering, its advice and its padding."""
    first = reason.strip().split("\n")[0].split(" (HINT:")[0].removesuffix(".")
    return re.sub(r"\s+", " ", re.sub(r"^\d+/\d+: ", "", first))
