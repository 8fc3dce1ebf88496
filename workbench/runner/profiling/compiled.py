"""Gives what Inductor generated to modules: the calls within a compiled graph, one after another.

The range of a compiled graph in a trace names it, and what lies directly in it are its calls in
their order. Of those of one name the first is the first that Inductor generated, and so on, as
long as there are as many as it generated; where there are not, nobody can tell which is which.
A call that computes for several modules belongs to the innermost that holds them all.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sessions.breakdown import COMPILED, LOSS, OUTSIDE
from workbench.runner.profiling.provenance import NOWHERE, Call
from workbench.runner.profiling.trace import ROOT, Trace

_GRAPH = re.compile(r"## Call CompiledFxGraph (\S+) ##")
_NUMBER = re.compile(r"^graph_\d+_(?=cpp_)")
_UNKNOWN = "a graph came from Inductor's cache, without what its kernels compute"
_MISCOUNTED = "what ran is not what Inductor said that it generated"
_APART = "a kernel computes for the model and its loss, or for a module that Dynamo does not name"
# What Dynamo calls the model in a step, and a block in its own method. Where a graph broke, what
# goes on in the middle of a module calls that module "self" as well: whose it is, nobody can tell.
_WHOLE, _BLOCK = frozenset({"model", "compute"}), frozenset({"self"})
_OVERLOADED = re.compile(r"^torch\.ops\.(\w+)\.(\w+)(\.\w+)?$")
# Operators that the calls run whose name is another one.
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
    """Give the calls of compiled graphs their modules, and with them the work that they launched.

    ``graphs``: calls by the graph's key. ``modules``: the class of each module by its path, the
    model's own being empty. ``has_loss``: whether what lies in no module is the loss. What cannot
    be told stays as it was, with the compiled code or the block that was compiled by itself, and
    ``trace.untold`` says why. Of a graph that is replayed as CUDA graphs, few calls are made.
    """
    untold: dict[str, None] = {}
    within: dict[int, list[int]] = defaultdict(list)
    for index, span in enumerate(trace.spans):
        within[span.parent].append(index)
    replaying = {graph for index, span in enumerate(trace.spans) if "GraphLaunch" in span.name
                 for graph in _around(trace, index)}  # fmt: skip
    for index, span in enumerate(trace.spans):
        if (named := _GRAPH.match(span.name)) is None:
            continue
        calls = graphs.get(named[1], ())
        around = _Around(span.module, modules, LOSS if has_loss else OUTSIDE)
        why = [] if calls else [_UNKNOWN]
        why += _name_launched(trace, within, index, calls, around)
        if index not in replaying:
            untold |= dict.fromkeys(why)
    trace.untold = "; ".join(untold)


def _around(trace: Trace, index: int) -> Iterator[int]:
    """The ranges around one."""
    while (index := trace.spans[index].parent) >= 0:
        yield index


def _name_launched(
    trace: Trace,
    within: Mapping[int, list[int]],
    graph: int,
    calls: Sequence[Call],
    around: _Around,
) -> Iterator[str]:
    """Name the calls that the host made one by one; yields why some are not named."""
    ran: dict[str, list[int]] = defaultdict(list)
    for child in within[graph]:
        ran[_NUMBER.sub("", trace.spans[child].name)].append(child)
    for name, places in _generated(calls).items():
        if len(places) != len(ran[name]):
            yield _MISCOUNTED
            continue
        for child, place in zip(ran[name], places, strict=True):
            if found := around.module(place):
                _give(trace, child, found, within)
            else:
                yield _APART


def _generated(calls: Iterable[Call]) -> dict[str, list[tuple[tuple[str, str], ...]]]:
    """The places of each operator's or kernel's calls, in their order."""
    found: dict[str, list[tuple[tuple[str, str], ...]]] = defaultdict(list)
    for name, places in calls:
        for one in _RUNS.get(name) or (_as_traced(name),):
            found[one].append(places)
    return found


def _as_traced(name: str) -> str:
    """A call's name in a trace."""
    if overloaded := _OVERLOADED.match(name):
        return f"{overloaded[1]}::{overloaded[2]}"
    library, _, rest = name.partition(".")
    return f"aten::{rest.partition('.')[0]}" if library in ("extern_kernels", "aten") else name


class _Around:
    """What a compiled graph computes in: the whole model, or a block that was compiled alone."""

    def __init__(self, module: str, modules: Mapping[str, str], outside: str) -> None:
        self._modules = modules
        whole = module == COMPILED
        self._base = "" if whole else f"{module}."
        self._roots = _WHOLE if whole else _BLOCK
        self._nowhere = (outside,) if whole else tuple(module.split("."))

    def module(self, places: Iterable[tuple[str, str]]) -> str:
        """The innermost that holds all places; empty where there is none, or one is unknown."""
        found = {self._nowhere if one == NOWHERE else self._path(*one) for one in places}
        if not found or None in found:
            return ""
        paths = [path for path in found if path is not None]
        if len(paths) > 1 and any(path[:1] and path[0].startswith("(") for path in paths):
            return ""  # the model and its loss have no module in common
        shared = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
        return ".".join(names[0] for names in shared) or ROOT

    def _path(self, path: str, kind: str) -> tuple[str, ...] | None:
        """The names that lead from the model to what Dynamo calls, say, L['model'].a[0]."""
        _, root, *names = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", path).split(".")
        for start in range(len(names) + 1) if root in self._roots else ():
            name = (self._base + ".".join(names[start:])).rstrip(".")
            if self._modules.get(name) == kind:
                return tuple(name.split(".")) if name else ()
        return None


def _give(trace: Trace, index: int, module: str, within: Mapping[int, list[int]]) -> None:
    waiting = [index]
    while waiting:
        one = waiting.pop()
        trace.spans[one].module = module
        waiting += within.get(one, ())
