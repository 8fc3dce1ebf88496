"""Where torch.compile breaks a model into several graphs, and why, with the lines.

Dynamo keeps the stack of each break, so that looking costs a running arm nothing. What is not
compiled can be traced by itself, without generating any code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from kernels import own_code
from workbench.runner.probes import _lines
from workbench.runner.probes._lines import Line


class Break(NamedTuple):
    """A graph break; ``line`` is None where it is not known."""

    reason: str
    line: Line | None

    def __str__(self) -> str:
        return f"{self.line}: {self.reason}" if self.line else self.reason


class Traced(NamedTuple):
    """What tracing alone showed."""

    graphs: int
    breaks: list[Break]


def mark() -> int:
    """Graph breaks so far. Does not load Dynamo, which takes seconds."""
    if "torch._dynamo" not in sys.modules:
        return 0
    return len(torch._dynamo.utils.graph_break_reasons)


def breaks_since(start: int) -> list[Break]:
    """The graph breaks since then, each place once."""
    if "torch._dynamo" not in sys.modules:
        return []
    reasons = torch._dynamo.utils.graph_break_reasons
    new = reasons[start:] if len(reasons) >= start else reasons
    return by_place(Break(_tidy(each.reason), _lines.innermost(each.user_stack)) for each in new)


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


def by_place(found: Iterable[Break]) -> list[Break]:
    """The first of each line, or of each reason where the line is not known."""
    return list({each.line or each.reason: each for each in reversed(list(found))}.values())[::-1]


def _tidy(reason: str) -> str:
    """Dynamo's reason in one line."""
    return reason.strip().split("\n")[0].removesuffix(".")
