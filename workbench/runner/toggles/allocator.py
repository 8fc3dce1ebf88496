"""The way torch's allocator reserves GPU memory: in blocks, or in segments that can grow.

Expandable segments extend existing segments, so changing sizes cause less fragmentation: the same
tensors need less reserved memory, and a step may fit that did not fit before. torch applies the
setting at run time: later allocations use such segments, and earlier allocations (weights that
other configurations share) do not move. Steps with constant shapes gain nothing. On an H200, HYDRA
base training (8 x 1,024 tokens, AMP BF16, Triton kernels): the peak is the same with expandable
segments.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_depth = 0


class _Expandable:
    """The setting for one variant; remembers the segments reserved before it was first active."""

    def __init__(self) -> None:
        self._before: list[_Segment] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with _expandable():
            if self._before is None:
                self._before = _reserved()
            yield

    def made(self, *, expandable: bool) -> int:
        """Return the bytes of expandable or other segments that were reserved since then."""
        before = self._before or []
        return sum(
            stop
            - start
            - sum(max(0, min(stop, end) - max(start, begin)) for begin, end, _ in before)
            for start, stop, kind in _reserved()
            if kind == expandable
        )


_Segment = tuple[int, int, bool]  # first address, end address, True if expandable


def _reserved() -> list[_Segment]:
    return [
        (at, at + segment["total_size"], bool(segment["is_expandable"]))
        for segment in torch.cuda.memory_snapshot()
        for at in [segment["address"]]
    ]


@contextlib.contextmanager
def _expandable() -> Iterator[None]:
    global _depth
    _depth += 1
    if _depth == 1:
        _configure("expandable_segments:True")
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            _configure("expandable_segments:False")


def _configure(setting: str) -> None:
    """Change one setting of the allocator and empty its cache, so that it applies at once."""
    environment = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")
    torch.cuda.empty_cache()
    older = torch.cuda.memory._set_allocator_settings
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", older)
    # A setting that is not named may return to its default.
    change(",".join(filter(None, (environment, setting))))


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "blocks":
        return None
    if not situation.on_gpu:
        return NEEDS_GPU
    if any("expandable_segments:True" in os.environ.get(name, "") for name in _VARIABLES):
        return Blocked(
            "the runner was started with expandable segments for every configuration",
            f"Start the runner without the variables {' and '.join(_VARIABLES)}.",
        )
    if torch.cuda.get_allocator_backend() != "native":
        return Blocked(
            f"the allocator is {torch.cuda.get_allocator_backend()}, which has no segments",
            f"Start the runner without the variables {' and '.join(_VARIABLES)}.",
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.flags.append(_Expandable())


def _evidence(option: str, observed: Observed) -> Finding:
    setting = next((flag for flag in observed.flags if isinstance(flag, _Expandable)), None)
    if setting is None:
        return no_effect("the allocator's setting was not changed")
    within, blocks = (setting.made(expandable=kind) / 2**20 for kind in (True, False))
    text = (
        f"{within:.0f} of {within + blocks:.0f} MiB reserved since the setting became active are "
        "in expandable segments"
    )
    return effective(text) if within else no_effect(text)


TOGGLE = Toggle(
    name="allocator",
    title="Allocator",
    help=__doc__,
    group="Memory",
    stage=Stage.MEMORY,
    options={"blocks": "Blocks", "expandable": "Expandable segments"},
    apply=_apply,
    evidence=_evidence,
    same_work=True,
    blocked=_blocked,
)
