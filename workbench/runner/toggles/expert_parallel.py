"""Shard the experts of each mixture among several GPUs, which share the batch.

Each rank computes its rows of the batch and has its part of every mixture's experts; all other
weights are on every rank (GShard, arXiv 2006.16668). In each mixture a token is sent to the ranks
that have its experts, and the results are sent back: two exchanges in the forward and two in the
backward pass, and one exchange of their sizes, for which the host waits. Gradients are averaged as
with data parallelism; those of an expert include the tokens of all ranks. Saves the memory of
experts, with their gradients and moments. Helps if experts are most of the model and links between
ranks are fast. The rank with the most popular experts computes longest. Each rank balances its own
experts, as with data parallelism. A compiler leaves out the exchanges and the experts. Counted for
MoE tiny training (4 x 16 tokens, 2 of 8 experts per token): each of two ranks has 4 experts of
every mixture and makes 15 exchanges per step in 3 mixtures. The memory of a rank is an estimate:
its rows, and its part of the experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import Footprint
from models.parallel.expert_parallel import experts_of
from models.parallel.expert_parallel_footprint import experts_footprint
from sessions.numbers import counted
from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.distributed.collectives import ALL_TO_ALL
from workbench.runner.toggles import conflict
from workbench.runner.toggles._ranks import (
    OPTIONS,
    PIPELINE,
    RANKS,
    SHARDING,
    TENSOR,
    WAITING,
    alike,
    batch_ranks_of,
    eight_bit,
    leave_graphs_unsplit,
    peaks_text,
    rank_traits,
    replayed,
    too_many,
    too_small,
    undivided_sizes,
)
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Finding,
    Kind,
    Situation,
    Stage,
    Toggle,
    Trait,
    no_effect,
)
from workbench.runner.toggles.tensor_parallel import traffic_text

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

_SCOPE = "compile_scope"
_EXCLUDED = {
    TENSOR: ("tensor parallelism already shards the columns of the experts", "off"),
    PIPELINE: ("pipeline stages would exchange tokens at different times", "off"),
    SHARDING: ("an expert that only one rank has cannot be sharded among all ranks", "off"),
}


def _divided_memory(situation: Situation, step: dict[str, Any]) -> Footprint | None:
    """Return the footprint of a rank; None if each rank has all experts.

    ``step`` holds the arguments of ``models``' footprints.
    """
    ranks = RANKS[situation.option(TOGGLE.name)]
    if ranks == 1 or not experts_of(situation.family, situation.config).count:
        return None
    sizes = undivided_sizes(step)
    return experts_footprint(situation.family, situation.config, ranks, **sizes)


def _blocked(option: str, situation: Situation) -> Blocked | None:
    ranks = RANKS[option]
    if ranks == 1:
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    count = experts_of(situation.family, situation.config).count
    if not count:
        return Blocked(
            f"{situation.family.title} has no mixture of experts",
            "Choose a model with experts.",
        )
    if why := too_many(TOGGLE.name, ranks, situation):
        return why
    if count % ranks:
        return Blocked(
            f"{counted(count, 'expert')} cannot be divided among {ranks} ranks",
            f"Choose a number of experts that is a multiple of {ranks}.",
        )
    for name, (reason, off_option) in _EXCLUDED.items():
        if situation.option(name) != off_option:
            return Blocked(reason, f"Switch {name.replace('_', ' ')} off.", {name: off_option})
    batch = int(situation.configuration.settings["batch"])
    rows = too_small(batch, batch_ranks_of(situation, **{TOGGLE.name: option}), situation)
    changes = (
        "{title} needs fixed sizes, but each rank receives another number of tokens in each step"
    )
    if situation.has(Trait.COMPILED) and situation.option(_SCOPE) == "fullgraph":
        return Blocked(
            "a graph breaks where ranks exchange tokens, because the host reads their number",
            "Compile the whole model or each block.",
            {_SCOPE: "model"},
        )
    return (
        conflict(situation, Trait.CAPTURED, changes)
        or replayed(situation)
        or eight_bit(situation)
        or rows
    )


def _apply(option: str, build: Build) -> None:
    build.layout = build.layout._replace(expert=RANKS[option])
    leave_graphs_unsplit(build)


def _evidence(option: str, observed: Observed) -> Finding:
    divided = observed.divided
    if divided is None or divided.layout.expert == 1 or divided.weights.full_weights is None:
        return no_effect("one rank has all experts")
    local_weights, full = divided.weights.own, divided.weights.full_weights
    traffic = divided.expert_traffic
    count = experts_of(observed.situation.family, observed.situation.config).count
    text = (
        f"this rank has {count // divided.layout.expert} of {count} experts of each mixture, and "
        f"{size_text(local_weights.bytes)} of {size_text(full.bytes)} of weights; "
        f"{traffic_text(traffic)}"
    )
    if local_weights.bytes >= full.bytes or not traffic.calls[ALL_TO_ALL]:
        return no_effect(text)
    return alike(divided, text + peaks_text(divided, on_gpu=observed.situation.on_gpu))


TOGGLE = Toggle(
    name="expert_parallel",
    title="Expert parallel",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options=OPTIONS,
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    divided_memory=_divided_memory,
    unpredictable=WAITING,
    kinds={"expert": Kind("expert_parallel", {})},
    traits=rank_traits(),
    bundled="shards the experts of the bundled families; your own model may not have experts",
)
