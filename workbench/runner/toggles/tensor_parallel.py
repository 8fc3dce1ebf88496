"""Divide wide layers among several GPUs: each sees the whole batch and has a share of every layer.

As in Megatron-LM (Shoeybi et al., arXiv 1909.08053): attention by its key/value heads, feed-forward
layers and experts by their columns, a state-space mixer by its heads, or groups of them (the norm
over a single group, which then spans the ranks, runs as steps of PyTorch). What a layer gives is
summed over the ranks, and in training the gradient of what it took; embedding, head, norms and
routers are on every rank, each for all tokens without sequence parallelism. Saves the memory of
what is divided, weights, gradients, moments and what a layer keeps for its backward pass, and costs
a sum of the stream a layer each way, for which every rank waits: pays where a step does not fit one
GPU, or its products are large beside the stream.
Counted for HYDRA base training (8 x 1,024 tokens, AMP BF16): each of two ranks has 0.67 of weights,
gradients and moments, and they sum 48 times 12 MiB a step. The first GPU also keeps the whole
weights and moments, which other configurations go on from, and so has to hold these too. The ranks
are processes, as with data parallelism; without a GPU they share the CPU, which shows that it is
right and not how fast it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import Footprint
from models.parallel.tensor_parallel_footprint import largest_share
from models.parallel.tensor_parallel_plan import divisible
from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.distributed.collectives import Traffic
from workbench.runner.toggles import conflict
from workbench.runner.toggles._ranks import (
    OPTIONS,
    RANKS,
    WAITING,
    alike,
    captured,
    eight_bit,
    peaks_text,
    rank_traits,
    too_many,
    undivided_sizes,
)
from workbench.runner.toggles._toggle import (
    Finding,
    Kind,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)
from workbench.runner.variants.compiles import counted

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.variant import Arm

WORKLOADS = ("train", "forward")


def _blocked(option: str, situation: Situation) -> Blocked | None:
    ranks = RANKS[option]
    if ranks == 1:
        return None
    if situation.workload.name not in WORKLOADS:
        return Blocked(
            "keys, values and states of a cache are not divided",
            "Choose the training step or the forward pass.",
            {"workload": "train"},
        )
    plan = divisible(situation.family, situation.config)
    if few := too_many(TOGGLE.name, ranks, situation):
        return few
    if not plan.layers:
        return Blocked(
            f"no layer can be divided: {'; '.join(plan.replicated)}", "Choose another model."
        )
    if why := plan.uneven(ranks):
        return Blocked(why, "Choose fewer ranks, or another model.")
    return _other_options(situation)


def _other_options(situation: Situation) -> Blocked | None:
    if why := conflict(
        situation, Trait.QUANTIZED, "quantized weights cannot be split across ranks"
    ):
        return why
    if getattr(situation.config, "gating", "") == "noisy_topk":
        return Blocked(
            "each rank would draw other noise for its router", "Choose gating without noise."
        )
    reason = "autotuning on each rank would pick different kernels, and replicated results diverge"
    return (
        conflict(situation, Trait.AUTOTUNED, reason) or captured(situation) or eight_bit(situation)
    )


def _apply(option: str, build: Build) -> None:
    build.layout = build.layout._replace(tensor=RANKS[option])


def tensor_ranks_of(situation: Situation) -> int:
    """Return among how many ranks the layers of the situation's model are divided."""
    return RANKS[situation.option(TOGGLE.name)]


def of_shares(situation: Situation, step: dict[str, Any]) -> Footprint | None:
    """Return the footprint of each rank; None for a situation whose layers are not divided.

    ``step`` holds the arguments of ``models``' footprints.
    """
    ranks, family, config = tensor_ranks_of(situation), situation.family, situation.config
    if ranks == 1:
        return None
    plan = divisible(family, config)
    if not plan.layers or plan.uneven(ranks):
        return None
    along = situation.option("sequence_parallel") == "on" and not plan.together
    return largest_share(family, config, ranks, along_sequence=along, **undivided_sizes(step))


def traffic_text(traffic: Traffic) -> str:
    """Say what ranks send each other in a step."""
    calls = ", ".join(counted(count, kind) for kind, count in traffic.calls.items()) or "nothing"
    return f"{calls} over the ranks a step, {size_text(traffic.bytes)} in all"


def _evidence(option: str, arm: Arm) -> Finding:
    divided = arm.divided
    if divided is None or divided.layout.tensor == 1 or divided.weights.full is None:
        return no_effect("the layers were not divided")
    own, full, traffic = divided.weights.own, divided.weights.full, divided.traffic
    layers = divisible(arm.situation.family, arm.situation.config)
    text = (
        f"{counted(len(layers.layers), 'layer')} divided among {divided.layout.tensor} ranks: this "
        f"one has {size_text(own.bytes)} of {size_text(full.bytes)} of weights; "
        f"{traffic_text(traffic)}"
    )
    text += peaks_text(divided, on_gpu=arm.situation.on_gpu)
    if layers.replicated:
        text += f"; complete on each rank: {'; '.join(layers.replicated)}"
    if own.bytes >= full.bytes or not traffic.bytes:
        return no_effect(text)
    if not arm.situation.workload.trains:
        return effective(text)
    return alike(divided, text)


TOGGLE = Toggle(
    name="tensor_parallel",
    title="Tensor parallel",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options=OPTIONS,
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="divides layers of the bundled families, which a model of yours is not known to have",
    divided_memory=of_shares,
    unpredictable=WAITING,
    kinds={"tensor": Kind("tensor_parallel", {})},
    traits=rank_traits(Trait.WEIGHTS_DIVIDED),
)
