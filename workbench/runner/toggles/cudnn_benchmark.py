"""Let cuDNN time its convolution algorithms at each new shape, and keep the fastest.

This costs time in the first step with each shape, and none later. It affects only convolutions that
cuDNN computes, which your own model may have. No bundled family has any: the short convolutions of
Mamba-2 and CCGQA are an operator of this library, in PyTorch as in Triton. On an H200 it found no
convolution to time in 4 of 4 families.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.backends import cudnn

from workbench.protocol import Blocked
from workbench.runner.profiling import instrumented
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)
from workbench.runner.user_models import user_model

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


@contextlib.contextmanager
def _benchmarking() -> Iterator[None]:
    before = cudnn.benchmark
    cudnn.benchmark = True
    try:
        yield
    finally:
        cudnn.benchmark = before


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if situation.family is not user_model.FAMILY:
        return Blocked(
            f"{situation.family.title} has no convolution that cuDNN computes",
            "Choose your own model with such convolutions.",
            absent=True,
        )
    return None if situation.on_gpu else NEEDS_GPU


def _apply(option: str, build: Build) -> None:
    build.flags.append(_benchmarking)


def _evidence(option: str, observed: Observed) -> Finding:
    with instrumented.Convolutions() as convolutions:
        instrumented.call(observed)
    through = {name: n for name, n in convolutions.libraries.items() if name.startswith("Cudnn")}
    shown = ", ".join(f"{count} {name}" for name, count in convolutions.libraries.items())
    if through and cudnn.benchmark:
        return effective(f"convolutions ran in cuDNN while it timed algorithms: {shown}")
    if not convolutions.libraries:
        return no_effect("this model calls no convolution")
    return no_effect(f"no convolution ran in cuDNN: {shown}")


TOGGLE = Toggle(
    name="cudnn_benchmark",
    title="cuDNN benchmark",
    help=__doc__,
    group="Kernels",
    stage=Stage.KERNELS,
    options={"off": "Off", "on": "On"},
    apply=_apply,
    evidence=_evidence,
    same_work=True,
    blocked=_blocked,
    incomparable="which algorithms cuDNN selects is unknown before a run",
)
