"""Detection of Inductor's autotuning, as distinct from the compilation around it.

While it compiles, torch writes the names of what it times ("mm_template_autotuning", a Triton
kernel's "benchmark_all_configs") to its event log, which is read here. Nothing else in torch
reports it as it happens. If the log has changed, tuning counts as compilation.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

_TUNES = re.compile(
    r"_template_(autotuning|precompiling)$"  # kernels of a matrix product are compiled or timed
    r"|^CachingAutotuner\.(benchmark_all_configs|coordinate_descent_tuning"
    r"|combo_sequential_autotune)$"
)


def watch(logger: type[Any], tuning: Callable[[], AbstractContextManager[None]]) -> bool:
    """Enter ``tuning()`` while any thread tunes something; return False without such events.

    ``logger``: torch's class with ``log_event_start`` and ``log_event_end``, changed from now on.
    """
    start, end = (getattr(logger, f"log_event_{suffix}", None) for suffix in ("start", "end"))
    if start is None or end is None:
        return False
    lock = threading.Lock()
    entered: list[AbstractContextManager[None]] = []
    count = 0  # current tuning events: threads tune at once, and events nest

    @functools.wraps(start)
    def started(self: Any, event_name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if _TUNES.search(event_name):
            with lock:
                count += 1
                if count == 1:
                    entered.append(tuning())
                    entered[-1].__enter__()
        return start(self, event_name, *args, **kwargs)

    @functools.wraps(end)
    def ended(self: Any, event_name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if _TUNES.search(event_name):
            with lock:
                count -= 1
                if count == 0:
                    entered.pop().__exit__(None, None, None)
        return end(self, event_name, *args, **kwargs)

    logger.log_event_start, logger.log_event_end = started, ended
    return True
