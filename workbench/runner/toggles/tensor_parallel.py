"""Shard wide layers among several GPUs: each computes the whole batch with part of every layer.

As in Megatron-LM (Shoeybi et al., arXiv 1909.08053), attention is sharded by its key/value heads,
feed-forward layers and experts by their columns, a state-space mixer by its heads or groups of
heads. (A norm over a single group spans the ranks, and then runs as separate PyTorch operators.)
The output of a layer is summed over the ranks; in training also the gradient of its input.
Embedding, head, norms and routers are on every rank and compute all tokens there, unless sequence
parallelism shards them. Saves the memory of the sharded weights, gradients and moments, and of what
a layer keeps for its backward pass. Each layer needs one all-reduce of the residual stream per
pass, for which every rank waits. Helps if a step does not fit on one GPU, or if products are large
compared with the residual stream. Counted for HYDRA base training (8 x 1,024 tokens, AMP BF16):
each of two ranks has 0.67 of weights, gradients and moments, and they sum 48 times 12 MiB per step.
The first GPU also keeps the full weights and moments, from which other configurations continue, so
it must have memory for both. The ranks are processes, as with data parallelism; without a GPU they
share the CPU, which shows whether results are correct, not how fast several GPUs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import Footprint
from models.parallel.tensor_parallel_footprint import largest_share
from models.parallel.tensor_parallel_plan import divisible
from sessions.numbers import counted
from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.distributed.collectives import Traffic
from workbench.runner.toggles import conflict
from workbench.runner.toggles._ranks import (
    OPTIONS,
    RANKS,
    WAITING,
    alike,
    eight_bit,
    peaks_text,
    rank_traits,
    replayed,
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

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

WORKLOADS = ("train", "forward")


def _blocked(option: str, situation: Situation) -> Blocked | None:
    ranks = RANKS[option]
    if ranks == 1:
        return None
    if situation.workload.name not in WORKLOADS:
        return Blocked(
            "keys, values and states in a cache cannot be sharded",
            "Choose the training step or the forward pass.",
            {"workload": "train"},
        )
    plan = divisible(situation.family, situation.config)
    if few := too_many(TOGGLE.name, ranks, situation):
        return few
    if not plan.layers:
        return Blocked(
            f"no layer can be sharded: {'; '.join(plan.replicated)}", "Choose another model."
        )
    if why := plan.why_uneven(ranks):
        return Blocked(why, "Choose fewer ranks, or another model.")
    return _other_options(situation)


def _other_options(situation: Situation) -> Blocked | None:
    if why := conflict(
        situation, Trait.QUANTIZED, "quantized weights cannot be split across ranks"
    ):
        return why
    if getattr(situation.config, "gating", "") == "noisy_topk":
        return Blocked(
            "the router of each rank would draw different noise", "Choose gating without noise."
        )
    reason = (
        "autotuning on each rank could pick different kernels, so replicated results would diverge"
    )
    return (
        conflict(situation, Trait.AUTOTUNED, reason) or replayed(situation) or eight_bit(situation)
    )


def _apply(option: str, build: Build) -> None:
    build.layout = build.layout._replace(tensor=RANKS[option])


def tensor_ranks_of(situation: Situation) -> int:
    """Return the number of ranks that the layers of the situation's model are sharded among."""
    return RANKS[situation.option(TOGGLE.name)]


def of_shares(situation: Situation, step: dict[str, Any]) -> Footprint | None:
    """Return the footprint of each rank; None for a situation whose layers are not sharded.

    ``step`` holds the arguments of ``models``' footprints.
    """
    ranks, along = sharding_of(situation)
    if ranks == 1:
        return None
    sizes = undivided_sizes(step) | {"sharding": step.get("sharding")}
    return largest_share(situation.family, situation.config, ranks, along_sequence=along, **sizes)


def sharding_of(situation: Situation) -> tuple[int, bool]:
    """Return the number of ranks that can shard the layers, and if the residual stream is split."""
    ranks = tensor_ranks_of(situation)
    plan = divisible(situation.family, situation.config)
    if ranks == 1 or not plan.layers or plan.why_uneven(ranks):
        return 1, False
    return ranks, situation.option("sequence_parallel") == "on" and not plan.why_not_split


def traffic_text(traffic: Traffic) -> str:
    """Return what ranks send each other in a step, as text."""
    calls = ", ".join(counted(count, kind) for kind, count in traffic.calls.items()) or "nothing"
    return f"{calls} between the ranks per step, {size_text(traffic.bytes)} in total"


def _evidence(option: str, observed: Observed) -> Finding:
    divided = observed.divided
    if divided is None or divided.layout.tensor == 1 or divided.weights.full_weights is None:
        return no_effect("no layer was sharded")
    local_weights, full = divided.weights.own, divided.weights.full_weights
    traffic = divided.traffic
    layers = divisible(observed.situation.family, observed.situation.config)
    text = (
        f"{counted(len(layers.layers), 'layer')} sharded among {divided.layout.tensor} ranks: this "
        f"rank has {size_text(local_weights.bytes)} of {size_text(full.bytes)} of weights; "
        f"{traffic_text(traffic)}"
    )
    text += peaks_text(divided, on_gpu=observed.situation.on_gpu)
    if layers.replicated:
        text += f"; not sharded: {'; '.join(layers.replicated)}"
    if local_weights.bytes >= full.bytes or not traffic.bytes:
        return no_effect(text)
    if not observed.situation.workload.trains:
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
    bundled="shards layers of the bundled families; your own model may not have such layers",
    divided_memory=of_shares,
    unpredictable=WAITING,
    kinds={"tensor": Kind("tensor_parallel", {})},
    traits=rank_traits(Trait.WEIGHTS_DIVIDED),
)
