"""Divide each training step among several GPUs: every one has the weights and a share of the batch.

The ranks are processes of their own. Gradients are averaged while the backward pass still runs, so
that all ranks make the update that one device would make of the whole batch; only what a loss holds
of the batch as a whole (the balance of experts) is then of each share. Pays where a share still
fills a GPU and the sums hide behind the backward pass. On two H200s, HYDRA base training (16 x
1,024 tokens, AMP BF16, Triton kernels) takes 0.80 of the step, beside a host that needs more than
half of it to launch the kernels, and 9.0 instead of 15.6 GiB a GPU. Memory and utilization are
shown of the first GPU, the families' live metrics of its share. Without a GPU the ranks are
processes that share the CPU, which shows that it is right and not how fast it is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.compiles import counted
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)
from workbench.runner.toggles.compile import WITH_GRAPHS

if TYPE_CHECKING:
    from workbench.runner.arm import Arm, Build

RANKS = {"off": 1, "2": 2, "4": 4, "8": 8}


def ranks_of(situation: Situation) -> int:
    """How many ranks a step of the situation is divided among."""
    return RANKS[situation.option(TOGGLE.name)]


def _blocked(option: str, situation: Situation) -> Blocked | None:
    ranks = RANKS[option]
    if ranks == 1:
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    if not dist.is_available():
        return Blocked("this torch was built without torch.distributed", "Install another build.")
    if why := _too_few(ranks, situation):
        return why
    if situation.option("cuda_graphs") == "on":
        return Blocked(
            "a captured step would go on using a group of ranks that may have ended",
            "Switch CUDA graphs off.",
            {"cuda_graphs": "off"},
        )
    if (mode := situation.option("compile")) in WITH_GRAPHS:
        return Blocked(
            f"torch.compile {mode} captures CUDA graphs, whose gradients lie where the graph is",
            "Compile without them.",
            {"compile": "max-autotune-no-cudagraphs" if mode == "max-autotune" else "default"},
        )
    if situation.option("adamw").startswith("8bit"):
        return Blocked(
            "moments in 8 bits cannot be taken over by other ranks",
            "Use AdamW with whole moments.",
            {"adamw": "fused"},
        )
    batch = int(situation.configuration.settings["batch"])
    if batch % ranks:
        return Blocked(
            f"a batch of {batch} cannot be divided among {ranks} ranks",
            f"Choose a batch that is a multiple of {ranks}.",
        )
    return None


def _too_few(ranks: int, situation: Situation) -> Blocked | None:
    if situation.on_gpu:
        count, what = torch.cuda.device_count(), "GPU"
    else:
        count, what = len(os.sched_getaffinity(0)), "CPU core"
    if ranks <= count:
        return None
    here = f"{count} {what}{'s' if count > 1 else ''}"
    return Blocked(
        f"needs {ranks} {what}s, and this machine has {here}",
        f"Run it on a machine with {ranks} {what}s.",
    )


def _apply(option: str, build: Build) -> None:
    build.ranks = RANKS[option]


def _evidence(option: str, arm: Arm) -> Finding:
    divided = arm.divided
    if divided is None or divided.buckets is None:
        return no_effect("the step was not divided")
    with arm.entered():
        divided.compare(arm)
    buckets, rows = divided.buckets, len(arm.batches.inputs[0])
    text = (
        f"{divided.ranks} ranks of {rows} sequences each; {size_text(buckets.bytes)} of gradients "
        f"a step in {buckets.count} sums, {buckets.early} of them begun within the backward pass"
    )
    if divided.differing is None:
        return no_effect(f"{text}; no step was made by all ranks")
    if divided.differing:
        return no_effect(f"{text}; no longer alike: {counted(divided.differing, 'parameter')}")
    return effective(f"{text}; the weights of all ranks are alike to the last bit")


TOGGLE = Toggle(
    name="data_parallel",
    title="Data parallel",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options={"off": "Off", "2": "2 ranks", "4": "4 ranks", "8": "8 ranks"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="divides each batch by its rows, which inputs of your own are not known to have",
)
