"""Divide each training step among several GPUs: every one has the weights and a share of the batch.

The ranks are processes of their own. Gradients are averaged while the backward pass still runs, so
that all ranks make the update that one device would make of the whole batch; only what a loss holds
of the batch as a whole (the balance of experts) is then of each share. Pays where a share still
fills a GPU and the sums hide behind the backward pass. On two H200s, HYDRA base training (32 x
1,024 tokens, AMP BF16, Triton kernels) takes 0.56 of the step and 16.0 instead of 29.5 GiB a GPU;
with half of these tokens, whose kernels the host takes as long to launch, 0.80. Utilization and
memory are sampled of every GPU; the memory of a step is the first one's, its peak that of the rank
that needs most, and the families' live metrics are of the first one's share. Without a GPU the
ranks are processes that share the CPU, which shows that it is right and not how fast it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.toggles._ranks import (
    OPTIONS,
    RANKS,
    captured,
    eight_bit,
    peaks_text,
    taken,
    too_few,
)
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)
from workbench.runner.variants.compiles import counted

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.variant import Arm


def ranks_of(situation: Situation) -> int:
    """How many ranks a step of the situation is divided among."""
    return RANKS[situation.option(TOGGLE.name)]


def _blocked(option: str, situation: Situation) -> Blocked | None:
    ranks = RANKS[option]
    if ranks == 1:
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    if why := too_few(ranks, situation):
        return why
    if why := taken(TOGGLE.name, situation) or captured(situation) or eight_bit(situation):
        return why
    batch = int(situation.configuration.settings["batch"])
    if batch % ranks:
        return Blocked(
            f"a batch of {batch} cannot be divided among {ranks} ranks",
            f"Choose a batch that is a multiple of {ranks}.",
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.ranks = RANKS[option]


def _evidence(option: str, arm: Arm) -> Finding:
    divided = arm.divided
    if divided is None or divided.buckets is None:
        return no_effect("the step was not divided")
    buckets, rows = divided.buckets, len(arm.batches.inputs[0])
    text = (
        f"{divided.ranks} ranks of {rows} sequences each; {size_text(buckets.bytes)} of gradients "
        f"a step in {buckets.count} sums, {buckets.early} of them begun within the backward pass"
    )
    text += peaks_text(divided, on_gpu=arm.situation.on_gpu)
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
    options=OPTIONS,
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="divides each batch by its rows, which inputs of your own are not known to have",
)
