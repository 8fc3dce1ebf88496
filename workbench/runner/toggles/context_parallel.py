"""Split each sequence among several GPUs, each with all weights: for long sequences.

Each rank computes its own tokens. Attention gathers the keys and values of all ranks (Llama 3,
arXiv 2407.21783, section 3.3.2) and masks by position. Mamba-2's mixer needs the state after the
tokens of the previous ranks, which follows from the ranks' own states and decays, and its
convolution needs their last tokens. The loss is the mean over all tokens, and gradients are
averaged as with data parallelism. The balance of experts is measured over the full sequence. Saves
activation memory if a batch of long sequences does not fit and has too few rows to split. The last
rank computes most of the attention, because its tokens see the longest past. Combines with all
other kinds of parallelism: the product of all ranks must fit the machine. Counted for HYDRA base
training (8 x 1,024 tokens, AMP BF16) on two ranks: 512 tokens of each sequence per rank, and 12
all-gathers and 12 reduce-scatters of 8 MiB per step. The memory of a rank is an estimate: its own
tokens, and all keys and values that it gathers. Live metrics describe the tokens of the first rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models.costs.footprint import PRECISIONS
from models.parallel.context_parallel import splittable
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.distributed.collective_order import ordering_options
from workbench.runner.distributed.collectives import ALL_GATHER, REDUCE_SCATTER
from workbench.runner.toggles._ranks import (
    OPTIONS,
    RANKS,
    SHARDING,
    WAITING,
    alike,
    eight_bit,
    layout_of,
    leave_graphs_unsplit,
    peaks_text,
    rank_traits,
    replayed,
    too_many,
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

_CHOOSING = ("mixture_of_depths", "mixture_of_recursions", "adaptive_rank", "adaptive_precision")


def _memory(option: str, situation: Situation) -> dict[str, int]:
    sequence, ranks = situation.workload.sequence(situation.configuration.settings), RANKS[option]
    return {"sequence": -(-sequence // ranks), "keys": sequence if ranks > 1 else 0}


def _gathered_bytes(situation: Situation, step: dict[str, Any]) -> tuple[int, ...]:
    """Return the bytes that each block saves because a rank has a part of each sequence.

    These are gathered keys and values, or states. ``step`` holds the arguments of ``models``'
    footprints.
    """
    ranks = layout_of(situation).context
    if ranks == 1:  # no model is built to find out
        return ()
    parts = splittable(situation.family, situation.config)
    if parts.unsplit:
        return ()
    compute = PRECISIONS[step["precision"]].compute
    return parts.saved_bytes(step["batch"], step["sequence"], ranks, compute)


def _blocked(option: str, situation: Situation) -> Blocked | None:
    ranks = RANKS[option]
    if ranks == 1:
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    parts = splittable(situation.family, situation.config)
    if parts.unsplit:
        return _unsplit(parts.unsplit, situation)
    if why := too_many(TOGGLE.name, ranks, situation):
        return why
    sequence = int(situation.configuration.settings["sequence"])
    if sequence % ranks:
        return Blocked(
            f"a sequence of {sequence} cannot be divided among {ranks} ranks",
            f"Choose a sequence that is a multiple of {ranks}.",
        )
    if sequence // ranks < parts.rows_before:
        return Blocked(
            f"each rank would have {counted(sequence // ranks, 'token')} of a sequence, but "
            f"a layer looks back {counted(parts.rows_before, 'token')}",
            f"Choose a sequence of at least {ranks * parts.rows_before}.",
        )
    return _other_options(situation)


def _unsplit(why: str, situation: Situation) -> Blocked:
    chosen = {name: "off" for name in _CHOOSING if getattr(situation.config, name, False)}
    if chosen:
        titles = " and ".join(name.replace("_", " ") for name in chosen)
        return Blocked(why, f"Switch {titles} off.", chosen)
    return Blocked(why, "Choose another model, or change its fields.")


def _other_options(situation: Situation) -> Blocked | None:
    if situation.option(SHARDING) == "hybrid":
        return Blocked(
            "ranks that split sequences are already the replicas of the shards, so sharding cannot "
            "add two replicas",
            "Shard among all ranks that share the batch.",
            {SHARDING: "full"},
        )
    return replayed(situation) or eight_bit(situation)


def _apply(option: str, build: Build) -> None:
    build.layout = build.layout._replace(context=RANKS[option])
    leave_graphs_unsplit(build)
    if build.situation.has(Trait.COMPILED):
        build.compile_options["options"] = ordering_options()


def _evidence(option: str, observed: Observed) -> Finding:
    divided = observed.divided
    if divided is None or divided.layout.context == 1:
        return no_effect("one device computes all tokens")
    traffic = divided.context_traffic
    tokens = observed.model.applied_tokens
    sequence = int(observed.situation.configuration.settings["sequence"])
    shown = f"{tokens} of {counted(sequence, 'token')} of each sequence"
    text = f"this rank has {shown}; {traffic_text(traffic)}"
    if tokens >= sequence or not (traffic.calls[ALL_GATHER] and traffic.calls[REDUCE_SCATTER]):
        return no_effect(text)
    return alike(divided, text + peaks_text(divided, on_gpu=observed.situation.on_gpu))


TOGGLE = Toggle(
    name="context_parallel",
    title="Context parallel",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options=OPTIONS,
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    memory=_memory,
    gathered_bytes=_gathered_bytes,
    unpredictable=WAITING,
    kinds={"context": Kind("context_parallel", {})},
    traits=rank_traits(),
    bundled="splits sequences of the bundled families; inputs of your own model may be different",
)
