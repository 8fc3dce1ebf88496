"""CUDA graphs that Inductor records itself: their number, their replay, and why some are skipped.

Inductor warms a function up in one step, records it in the next and replays it from then on. The
reasons for skipping a graph appear only in its log. The graphs of a device form a tree, which knows
what it did last. All functions that a process compiles share that tree.
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
    """Return the tree of a device, by default the current one; None if nothing was recorded."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or (index is None and not torch.cuda.is_initialized()):
        return None
    index = torch.cuda.current_device() if index is None else index
    return trees.get_manager(index, create_if_none_exists=False)


def recorded() -> frozenset[Hashable]:
    """Return the numbers of the graphs in the current device's tree."""
    tree = manager()
    roots = {} if tree is None else tree.roots or {}  # None after its shutdown
    return frozenset(node.id for node in _nodes(roots))


def replays() -> bool:
    """Return whether the last run was the replay of a graph, not a warm-up or a recording."""
    tree = manager()
    return tree is not None and tree.path_state.name == "EXECUTION"


def can_launch(index: int | None) -> bool:
    """Return whether ``launched`` is possible: something was recorded, in a known kind of tree."""
    tree = manager(index)
    return callable(getattr(type(tree), "_run", None)) and bool(getattr(tree, "ids_to_funcs", None))


@contextlib.contextmanager
def launched(index: int | None) -> Iterator[None]:
    """Run recorded functions inside the context without their graphs.

    Each kernel is launched individually, and its memory comes from the allocator and returns to it.
    Inductor itself runs functions that it cannot record in this way.
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
    """Count in ``reasons`` why graphs are skipped inside the context."""
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
        """Count the reason as a single line, with the line of the model that it names."""
        message, separator, stack = record.getMessage().partition("Found from")
        if not _SKIPS.match(message.strip()):
            return
        reason = _SKIPS.sub("", message.strip(), count=1).split("\n")[0].rstrip(". ")
        if frames := _FRAME.findall(stack if separator else ""):
            file, line, function = frames[-1]
            reason += f" ({Path(file).name}:{line} in {function})"
        self._reasons[reason or "no reason given"] += 1


def _nodes(children: Any) -> Iterator[Any]:
    for alternatives in children.values():
        for node in alternatives:
            yield node
            yield from _nodes(node.children)
