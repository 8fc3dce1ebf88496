"""Graph breaks: the lines at which torch.compile splits a model into several graphs, and why.

Dynamo stores the stack of each break, so that reading them costs a running variant nothing. Code
that is not compiled can be traced separately, without generating any code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from kernels import own_code
from workbench.runner import source_lines
from workbench.runner.source_lines import Line


class Break(NamedTuple):
    """A graph break; ``line`` is None if it is not known."""

    reason: str
    line: Line | None

    def __str__(self) -> str:
        return f"{self.line}: {self.reason}" if self.line else self.reason


class Traced(NamedTuple):
    """The result of tracing without code generation."""

    graphs: int
    breaks: list[Break]


def mark() -> int:
    """Return the number of graph breaks so far, without loading Dynamo, which takes seconds."""
    if "torch._dynamo" not in sys.modules:
        return 0
    return len(torch._dynamo.utils.graph_break_reasons)


def breaks_since(start: int) -> list[Break]:
    """Return the graph breaks after the mark ``start``, one per source line."""
    if "torch._dynamo" not in sys.modules:
        return []
    reasons = torch._dynamo.utils.graph_break_reasons
    new = reasons[start:] if len(reasons) >= start else reasons
    return by_place(
        Break(_tidy(entry.reason), source_lines.innermost(entry.user_stack)) for entry in new
    )


def trace(compute: Callable[..., Any], inputs: Iterable[Any]) -> Traced:
    """Trace ``compute`` once under Dynamo with a compiler that only counts graphs.

    Any exception of the traced code is raised.
    """
    from torch import _dynamo  # takes seconds, so only on demand

    graphs = 0

    def count(graph: Any, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    start = mark()
    with _dynamo.config.patch(suppress_errors=False):
        torch.compile(own_code(compute), backend=count, dynamic=False)(*inputs)
    return Traced(graphs, breaks_since(start))


def by_place(breaks: Iterable[Break]) -> list[Break]:
    """Return the first break of each line, or of each reason if the line is not known."""
    return list({item.line or item.reason: item for item in reversed(list(breaks))}.values())[::-1]


def _tidy(reason: str) -> str:
    """Return Dynamo's reason as a single line."""
    return reason.strip().split("\n")[0].removesuffix(".")
