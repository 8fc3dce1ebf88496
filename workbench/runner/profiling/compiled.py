"""Attribution of code that Inductor generated to modules, call by call.

The range of a compiled graph in a trace names the graph, and the ranges directly inside it are its
calls in order. The first call of a name is the first that Inductor generated with that name, and so
on, as long as the trace has as many calls as Inductor generated. If the numbers differ, the calls
cannot be matched. A call that computes for several modules belongs to the innermost module that
contains them all.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sessions.studies.breakdown import COMPILED, LOSS, OUTSIDE
from sessions.tracing.trace import ROOT, Trace
from workbench.runner.profiling.provenance import NOWHERE, Call

_GRAPH = re.compile(r"## Call CompiledFxGraph (\S+) ##")
_NUMBER = re.compile(r"^graph_\d+_(?=cpp_)")
_UNKNOWN = "a graph came from Inductor's cache, which does not record what its kernels compute"
_MISCOUNTED = "the calls that ran differ from those that Inductor generated"
_APART = "a kernel computes for the model and its loss, or for a module that Dynamo does not name"
# Dynamo's names of the model in a step, and of a block in its own method. After a graph break in
# the middle of a module, Dynamo calls that module "self" as well, so it cannot be identified.
_MODEL, _BLOCK = frozenset({"model", "compute"}), frozenset({"self"})
_OVERLOADED = re.compile(r"^torch\.ops\.(\w+)\.(\w+)(\.\w+)?$")
# Operators that run under another name than the call has.
_RUNS = {
    "extern_kernels.bias_addmm": ("aten::addmm",),
    "extern_kernels.mm_dtype": ("aten::mm",),
    "extern_kernels.bmm_dtype": ("aten::bmm",),
}


def name_compiled(
    trace: Trace,
    graphs: Mapping[str, Sequence[Call]],
    modules: Mapping[str, str],
    *,
    has_loss: bool,
) -> None:
    """Attribute the calls of compiled graphs, and the work that they launched, to modules.

    ``graphs``: calls by the graph's key. ``modules``: the class of each module by its path; the
    model's own path is empty. ``has_loss``: whether calls outside of any module belong to the loss.
    Calls that cannot be attributed remain with the compiled code, or with the block that was
    compiled separately, and ``trace.unattributed`` gives the reason. A graph that is replayed as
    CUDA graphs makes few calls.
    """
    unattributed: dict[str, None] = {}
    within: dict[int, list[int]] = defaultdict(list)
    for index, span in enumerate(trace.spans):
        within[span.parent].append(index)
    replaying = {graph for index, span in enumerate(trace.spans) if "GraphLaunch" in span.name
                 for graph in _enclosing_ranges(trace, index)}  # fmt: skip
    for index, span in enumerate(trace.spans):
        if (named := _GRAPH.match(span.name)) is None:
            continue
        calls = graphs.get(named[1], ())
        scope = _Around(span.module, modules, LOSS if has_loss else OUTSIDE)
        why = [] if calls else [_UNKNOWN]
        why += _name_launched(trace, within, index, calls, scope)
        if index not in replaying:
            unattributed |= dict.fromkeys(why)
    trace.unattributed = "; ".join(unattributed)


def _enclosing_ranges(trace: Trace, index: int) -> Iterator[int]:
    """Yield the ranges around a range, the innermost first."""
    while (index := trace.spans[index].parent) >= 0:
        yield index


def _name_launched(
    trace: Trace,
    within: Mapping[int, list[int]],
    graph: int,
    calls: Sequence[Call],
    scope: _Around,
) -> Iterator[str]:
    """Name the calls that the host made individually; yield the reasons why some are not named."""
    ran: dict[str, list[int]] = defaultdict(list)
    for child in within[graph]:
        ran[_NUMBER.sub("", trace.spans[child].name)].append(child)
    for name, modules in _generated(calls).items():
        if len(modules) != len(ran[name]):
            yield _MISCOUNTED
            continue
        for child, modules_of_call in zip(ran[name], modules, strict=True):
            if owner := scope.module(modules_of_call):
                _give(trace, child, owner, within)
            else:
                yield _APART


def _generated(calls: Iterable[Call]) -> dict[str, list[tuple[tuple[str, str], ...]]]:
    """Return the modules of each operator's or kernel's calls, in order."""
    generated: dict[str, list[tuple[tuple[str, str], ...]]] = defaultdict(list)
    for name, modules in calls:
        for traced in _RUNS.get(name) or (_as_traced(name),):
            generated[traced].append(modules)
    return generated


def _as_traced(name: str) -> str:
    """Return a call's name in a trace."""
    if overloaded := _OVERLOADED.match(name):
        return f"{overloaded[1]}::{overloaded[2]}"
    library, _, operator = name.partition(".")
    return f"aten::{operator.partition('.')[0]}" if library in ("extern_kernels", "aten") else name


class _Around:
    """The scope of a compiled graph: the model, or a block that was compiled separately."""

    def __init__(self, module: str, modules: Mapping[str, str], outside: str) -> None:
        self._modules = modules
        is_model = module == COMPILED
        self._base = "" if is_model else f"{module}."
        self._roots = _MODEL if is_model else _BLOCK
        self._nowhere = (outside,) if is_model else tuple(module.split("."))

    def module(self, places: Iterable[tuple[str, str]]) -> str:
        """Return the innermost module that contains all ``places``; empty if it is unknown."""
        candidates = {
            self._nowhere if location == NOWHERE else self._path(*location) for location in places
        }
        if not candidates or None in candidates:
            return ""
        paths = [path for path in candidates if path is not None]
        if len(paths) > 1 and any(path[:1] and path[0].startswith("(") for path in paths):
            return ""  # the model and its loss have no module in common
        shared = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
        return ".".join(names[0] for names in shared) or ROOT

    def _path(self, path: str, kind: str) -> tuple[str, ...] | None:
        """Return the names from the model to what Dynamo calls, for example, L['model'].a[0]."""
        _, root, *names = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", path).split(".")
        for start in range(len(names) + 1) if root in self._roots else ():
            name = (self._base + ".".join(names[start:])).rstrip(".")
            if self._modules.get(name) == kind:
                return tuple(name.split(".")) if name else ()
        return None


def _give(trace: Trace, index: int, module: str, within: Mapping[int, list[int]]) -> None:
    waiting = [index]
    while waiting:
        span = waiting.pop()
        trace.spans[span].module = module
        waiting += within.get(span, ())
