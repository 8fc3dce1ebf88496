"""Let cuDNN time its convolution algorithms at each new shape, and keep the fastest.

Costs time at every first step of a shape, and none later. Acts on convolutions that run through
cuDNN alone, which a model of one's own may have. No bundled family has: the short convolutions of
Mamba-2 and of CCGQA are an operator of ours, in PyTorch as in Triton. On an H200 it
found no convolution to time in 4 of 4 families.
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
            f"{situation.family.title} has no convolution that runs through cuDNN",
            "Choose a model of your own that has.",
            absent=True,
        )
    return None if situation.on_gpu else NEEDS_GPU


def _apply(option: str, build: Build) -> None:
    build.flags.append(_benchmarking)


def _evidence(option: str, observed: Observed) -> Finding:
    with instrumented.Convolutions() as seen:
        instrumented.call(observed)
    through = {name: n for name, n in seen.libraries.items() if name.startswith("Cudnn")}
    shown = ", ".join(f"{count} {name}" for name, count in seen.libraries.items())
    if through and cudnn.benchmark:
        return effective(f"convolutions ran through cuDNN while it times algorithms: {shown}")
    if not seen.libraries:
        return no_effect("this model calls no convolution")
    return no_effect(f"no convolution ran through cuDNN: {shown}")


TOGGLE = Toggle(
    name="cudnn_benchmark",
    title="cuDNN benchmark",
    help=__doc__,
    group="Kernels",
    stage=Stage.KERNELS,
    options={"off": "Off", "on": "On"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    incomparable="which algorithms cuDNN finds is known once it has searched",
)
