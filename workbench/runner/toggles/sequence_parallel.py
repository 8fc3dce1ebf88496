"""Shard the residual stream along the sequence between tensor-parallel layers.

With tensor parallelism alone, every rank computes and keeps everything outside of the sharded
layers: embedding, norms, additions, head and loss. With this option each rank has only its own
tokens there (Korthikanti et al., arXiv 2205.05198). A layer gathers its input, and each rank
receives its tokens of the summed output; both together move as many bytes as one all-reduce. This
saves memory and time of embedding, norms, additions, head and loss, and the inputs that
checkpointed blocks keep. Each step also sums the gradients of the weights that every rank has:
norms, embedding and head. Unlike in the paper, gathered inputs stay in memory until the backward
pass and are not gathered again. Counted for HYDRA base training (8 x 1,024 tokens, two ranks): 512
tokens of each sequence outside of the layers, and 48 all-gathers, 48 reduce-scatters and 3
all-reduces per step instead of 48 all-reduces. The forward pass workload computes the logits of all
tokens on every rank. Live metrics of a family describe the tokens of the first rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.parallel.tensor_parallel_plan import divisible
from workbench.protocol import Blocked
from workbench.runner.distributed.collectives import ALL_GATHER, REDUCE_SCATTER
from workbench.runner.toggles import tensor_parallel
from workbench.runner.toggles._ranks import CONTEXT, RANKS, TENSOR, too_many
from workbench.runner.toggles._toggle import (
    Finding,
    Kind,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)
from workbench.runner.toggles.tensor_parallel import tensor_ranks_of, traffic_text

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    ranks = tensor_ranks_of(situation)
    if ranks == 1:
        return tensor_parallel.TOGGLE.blocked("2", situation) or Blocked(
            "needs tensor parallelism, which is off",
            "Switch tensor parallelism on.",
            {TENSOR: "2"},
        )
    if few := too_many(tensor_parallel.TOGGLE.name, ranks, situation):
        return few
    if why := divisible(situation.family, situation.config).why_not_split:
        return Blocked(why, "Choose another model, or switch Sequence parallel off.")
    sequence = int(situation.configuration.settings["sequence"])
    sequence //= RANKS[situation.option(CONTEXT)]
    if sequence % ranks:
        return Blocked(
            f"a sequence of {sequence} cannot be divided among {ranks} ranks",
            f"Choose a sequence that is a multiple of {ranks}.",
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.along_sequence = True


def _evidence(option: str, observed: Observed) -> Finding:
    divided = observed.divided
    if divided is None or divided.layout.tensor == 1:
        return no_effect("no layer was sharded")
    sequence = int(observed.situation.configuration.settings["sequence"])
    traffic = divided.traffic
    text = (
        f"outside of the layers this rank has {traffic.tokens or sequence} of {sequence} tokens; "
        f"{traffic_text(traffic)}"
    )
    exchanged = traffic.calls[ALL_GATHER] and traffic.calls[REDUCE_SCATTER]
    return effective(text) if 0 < traffic.tokens < sequence and exchanged else no_effect(text)


TOGGLE = Toggle(
    name="sequence_parallel",
    title="Sequence parallel",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options={"off": "Off", "on": "On"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    kinds={"sequence": Kind(tensor_parallel.TOGGLE.name, {"sequence_parallel": "on"})},
    bundled="shards the residual stream of the bundled families; your own model may not have one",
)
