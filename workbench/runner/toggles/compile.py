"""``torch.compile``: Dynamo traces the model, Inductor generates fused kernels for it.

``reduce-overhead`` and ``max-autotune`` also replay CUDA graphs. Compiling takes from seconds to
minutes; the timeline shows it as a phase of its own.
"""

from __future__ import annotations

import functools
import shutil
from typing import TYPE_CHECKING

import torch

from kernels import own_code
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
    from workbench.runner.arm import Arm, Build

WITH_GRAPHS = ("reduce-overhead", "max-autotune")


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if option in WITH_GRAPHS and not situation.on_gpu:
        return NEEDS_GPU
    if not situation.on_gpu and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return Blocked("Inductor needs a C++ compiler on the CPU and finds none", "Install g++.")
    return None


def _apply(option: str, build: Build) -> None:
    build.phases.watch_compiles()
    compiled = functools.partial(torch.compile, mode=option, dynamic=False)
    build.compute_wrappers.append(lambda compute: compiled(own_code(compute)))


def _evidence(option: str, arm: Arm) -> Finding:
    counts = arm.compile_counts
    if not counts.get("graphs"):
        return no_effect("no graph was compiled: the model ran in eager mode")
    text = f"{counts['graphs']} graphs compiled, {counts.get('breaks', 0)} graph breaks"
    if counts.get("reasons"):
        text += f" ({counts['reasons']})"
    if option in WITH_GRAPHS:
        if counts.get("cudagraph_skips"):
            return no_effect(f"{text}; CUDA graphs skipped {counts['cudagraph_skips']} times")
        text += ", replayed as CUDA graphs"
    return effective(text)


TOGGLE = Toggle(
    name="compile",
    title="torch.compile",
    help=__doc__,
    group="Compilation",
    stage=Stage.COMPILE,
    options={
        "off": "Off",
        "default": "default",
        "reduce-overhead": "reduce-overhead",
        "max-autotune": "max-autotune",
        "max-autotune-no-cudagraphs": "max-autotune, no CUDA graphs",
    },
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
)
