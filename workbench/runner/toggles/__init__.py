"""The optimizations, one file each; ``all_toggles()`` gives them in order of stage."""

from __future__ import annotations

import functools

from workbench.runner._registry import gather
from workbench.runner.toggles._toggle import Situation, Stage, Toggle, unknown

__all__ = ["Situation", "Stage", "Toggle", "all_toggles", "unknown"]


@functools.cache
def all_toggles() -> dict[str, Toggle]:
    """Every toggle by name, in the order in which they are applied."""
    found = gather(__name__, "TOGGLE", Toggle)
    return dict(sorted(found.items(), key=lambda item: (item[1].stage, item[0])))
