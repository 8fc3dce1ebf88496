"""Shard gradients, moments and weights among the ranks that share a batch: FSDP (fully_shard).

torch shards each block, and the remaining parameters, along the first axis. *Gradients and moments*
keeps gathered weights from the forward to the backward pass (ZeRO 2). *All, with weights* releases
them in between and gathers them twice (ZeRO 3). *All, on the host* keeps the weights and moments of
each shard in the host's memory and updates them there. *All, in two replicas* shards among half of
the ranks and replicates over the two halves (HSDP): only gradients cross between the halves, which
suits two hosts. Helps if memory is short, for a larger batch or model. With torch.compile each
block is compiled separately, because weights are gathered and released between blocks. Counted for
HYDRA base training (114M parameters in FP32) on two ranks: each holds 218 of 436 MiB of weights and
436 of 871 MiB of moments.

The first GPU also holds the full weights and moments, from which other configurations continue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import models
from sessions.sizes import size_text
from workbench.protocol import Blocked, Failure
from workbench.runner.toggles import conflict, data_parallel
from workbench.runner.toggles._ranks import DATA, RANKS, alike, layout_of
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Finding,
    Fix,
    Kind,
    Situation,
    Stage,
    Toggle,
    Trait,
    no_effect,
)
from workbench.runner.user_models import user_model

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    if situation.option(DATA) == "off":
        return data_parallel.TOGGLE.blocked("2", situation) or Blocked(
            "needs data parallelism, which is off",
            "Split each batch among two ranks.",
            {DATA: "2"},
        )
    if option == "hybrid" and RANKS[situation.option(DATA)] < 4:
        return Blocked(
            "needs four ranks: two replicas with two shards each",
            "Split each batch among four ranks.",
            {DATA: "4"},
        )
    if option == "offload" and (why := _offload(situation)):
        return why
    return _other_options(situation)


def _offload(situation: Situation) -> Blocked | None:
    if situation.option("adamw") == "fused" and situation.on_gpu:
        return Blocked(
            "fused AdamW updates weights on the GPU, but this option keeps them on the host",
            "Use foreach AdamW.",
            {"adamw": "foreach"},
        )
    if situation.option("precision") == "amp_fp16":
        return Blocked(
            "loss scaling needs gradients on the GPU, but this option keeps them on the host",
            "Use BF16, which needs no loss scaling.",
            {"precision": "amp_bf16"},
        )
    return None


def _other_options(situation: Situation) -> Blocked | None:
    if why := conflict(
        situation,
        Trait.OFFLOADED,
        "{title} would also move the gathered weights to the host",
    ):
        return why
    if situation.option("fused_add_norm") != "off":
        return Blocked(
            "a fused addition needs the next block's norm before its weights are gathered",
            "Switch Fused add and norm off.",
            {"fused_add_norm": "off"},
        )
    return conflict(
        situation,
        Trait.TILES_TUNED,
        "tiles are tuned in a complete step on one device, but each device has only its shards",
    )


def _memory(option: str, situation: Situation) -> dict[str, models.Sharding | None]:
    if option == "off":
        return {"sharding": None}
    ranks = layout_of(situation).shard
    return {
        "sharding": models.Sharding(
            ranks=ranks, shares_weights=option != "gradients", offloads=option == "offload"
        )
    }


def _fixes(
    failure: Failure, situation: Situation, needed: models.Footprint | None
) -> Iterator[Fix]:
    has_ranks = RANKS[situation.option(DATA)] > 1
    if failure.kind == "out-of-memory" and has_ranks and situation.option(TOGGLE.name) != "full":
        meaning = "each rank holds only its shard of weights, gradients and moments, but sends more"
        yield Fix(10, {TOGGLE.name: "full"}, meaning)
        meaning = "each rank holds only its shard of gradients and moments"
        yield Fix(10, {TOGGLE.name: "gradients"}, meaning)


def _apply(option: str, build: Build) -> None:
    layout = layout_of(build.situation)
    build.sharding = option
    build.layout = build.layout._replace(replicate=layout.replicate, shard=layout.shard)
    if build.situation.family is not user_model.FAMILY:
        build.compiles_blocks = True  # has an effect only with torch.compile


def _evidence(option: str, observed: Observed) -> Finding:
    divided = observed.divided
    shards = None if divided is None else divided.fully_shard
    if divided is None or shards is None or observed.optimizer is None:
        return no_effect("no rank has a shard")
    moments = shards.moment_bytes(observed.optimizer)
    text = (
        f"this rank holds {size_text(shards.bytes)} of {size_text(shards.full_bytes)} of weights "
        f"and {size_text(moments)} of {size_text(2 * shards.full_bytes)} of moments"
    )
    if option == "offload":
        text += " on the host"
    if shards.bytes >= shards.full_bytes or moments >= 2 * shards.full_bytes:
        return no_effect(text)
    return alike(divided, text)


_OPTIONS = {
    "gradients": "Gradients and moments",
    "full": "All, with weights",
    "offload": "All, on the host",
    "hybrid": "All, in two replicas",
}

TOGGLE = Toggle(
    name="sharding",
    title="Sharding",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options={"off": "Off"} | _OPTIONS,
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    memory=_memory,
    incomparable="how long ranks wait for each other's shards is unknown before they run",
    fixes=_fixes,
    kinds={
        kind: Kind(data_parallel.TOGGLE.name, {"sharding": option})
        for kind, option in (("gradients", "gradients"), ("fsdp", "full"), ("hybrid", "hybrid"))
    },
    traits=dict.fromkeys(_OPTIONS, (Trait.OWN_REDUCTION,)),
)
