"""CUDA graphs that Inductor records by itself: how many, whether they are replayed, and why not.

It warms a function up in one step, records it in the next and replays it from then on. Reasons for
leaving one out go to its log alone; the graphs stand in a tree for each device, and the tree knows
what it did last. One tree serves all that a process compiles.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import torch

_LOG = "torch._inductor.cudagraph_utils.__cudagraphs"
_SKIPS = re.compile(r"skipping cudagraphs? (due to |because )?", re.IGNORECASE)
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\w+)')


def manager(index: int | None = None) -> Any:
    """The tree of a device, the current one by default; None where nothing was recorded."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or (index is None and not torch.cuda.is_initialized()):
        return None
    index = torch.cuda.current_device() if index is None else index
    return trees.get_manager(index, create_if_none_exists=False)


def recorded() -> frozenset[Hashable]:
    """The numbers of the graphs that the current device's tree holds."""
    tree = manager()
    roots = {} if tree is None else tree.roots or {}  # None once it was shut down
    return frozenset(node.id for node in _nodes(roots))


def replays() -> bool:
    """Whether what ran last was the replay of a graph, neither a warm-up nor a recording."""
    tree = manager()
    return tree is not None and tree.path_state.name == "EXECUTION"


def can_launch(index: int | None) -> bool:
    """Whether ``launched`` can be entered: something was recorded, in a tree that is known."""
    tree = manager(index)
    return callable(getattr(type(tree), "_run", None)) and bool(getattr(tree, "ids_to_funcs", None))


@contextlib.contextmanager
def launched(index: int | None) -> Iterator[None]:
    """What was recorded runs inside as it was compiled: launched kernel by kernel, its memory taken
    from the allocator and given back. So Inductor itself runs a function that it cannot record.
    """
    tree = manager(index)
    functions = tree.ids_to_funcs
    tree._run = lambda inputs, function: functions[function].model(inputs)
    try:
        yield
    finally:
        del tree._run


@contextlib.contextmanager
def skips(reasons: Counter[str]) -> Iterator[None]:
    """Count in ``reasons`` why graphs are left out meanwhile."""
    log, handler = logging.getLogger(_LOG), _Reasons(reasons)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Reasons(logging.Handler):
    def __init__(self, reasons: Counter[str]) -> None:
        super().__init__()
        self._reasons = reasons

    def emit(self, record: logging.LogRecord) -> None:
        """Take the reason in one line, with the line of the model that it names."""
        said, told, stack = record.getMessage().partition("Found from")
        if not _SKIPS.match(said.strip()):
            return
        reason = _SKIPS.sub("", said.strip(), count=1).split("\n")[0].rstrip(". ")
        if frames := _FRAME.findall(stack if told else ""):
            file, line, function = frames[-1]
            reason += f" ({Path(file).name}:{line} in {function})"
        self._reasons[reason or "no reason given"] += 1


def _nodes(children: Any) -> Iterator[Any]:
    for alternatives in children.values():
        for node in alternatives:
            yield node
            yield from _nodes(node.children)
