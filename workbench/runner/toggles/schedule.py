"""The order in which the pipeline stages compute their micro-batches.

*One forward, one backward* (1F1B, Narayanan et al., arXiv 2104.04473): a stage keeps the
activations of at most as many micro-batches as there are stages from it to the last one. *All
forward, then all backward* (GPipe, Huang et al., arXiv 1811.06965) keeps those of all micro-batches
and waits as long. It is faster only if messages take so long that 1F1B waits for them. Counted for
two stages and eight micro-batches: the first stage keeps two micro-batches with 1F1B, and all eight
with GPipe.

*Interleaved* (arXiv 2104.04473, section 2.2) gives each rank two shorter stages: ranks wait half as
long and send twice as often. Counted for two ranks and eight micro-batches: they wait for 0.06
instead of 0.11 of a step, if all blocks take equally long.

*Zero bubble* (ZB1P, Qi et al., arXiv 2401.10241) has the stages of *Interleaved* and computes the
gradients of weights separately from those of inputs. The neighbouring stage waits only for the
gradients of inputs; those of weights fill the time in which a rank would wait. Each layer's
backward pass starts twice, and the graph of a micro-batch stays in memory until the second start.
The paper's other schedule, ZBV, is not available: it needs the first and the last stage on one
rank, and here consecutive stages are on consecutive ranks.

No schedule reduces the host's work for each micro-batch, but CUDA graphs do. On two H200s in AMP
BF16 a step of HYDRA base (32 x 1,024 tokens, compiled, CUDA graphs) took 47.0 ms with 4
micro-batches in 1F1B, 52.6 ms with 8, and 47.2 ms with 4 in *Interleaved*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.parallel.pipeline_stages import chain
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.distributed.mesh import CHUNKS, IN_CHUNKS
from workbench.runner.toggles import conflict
from workbench.runner.toggles._ranks import PIPELINE, RANKS, SHARDING, WAITING_STAGES
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)
from workbench.runner.toggles.micro_batches import micro_batches_of

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

_TWICE = (
    "{title} computes the gradients of inputs and of weights in one function, so each would be "
    "computed twice"
)


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "1f1b":
        return None
    if situation.option(PIPELINE) == "off":
        return Blocked(
            "needs pipeline parallelism, which is off",
            "Switch pipeline parallelism on.",
            {PIPELINE: "2"},
        )
    if option == "gpipe":
        return _like_1f1b(situation)
    if option == "zero_bubble" and (why := conflict(situation, Trait.COMPILED, _TWICE)):
        return why
    return _not_in_chunks(situation) if option in IN_CHUNKS else None


def _like_1f1b(situation: Situation) -> Blocked | None:
    """Return why 1F1B would run the same passes in the same order as GPipe."""
    ranks = RANKS[situation.option(PIPELINE)]
    count = micro_batches_of(situation, ranks)
    if count >= ranks:
        return None
    reason = (
        f"with fewer micro-batches ({count}) than stages ({ranks}), 1F1B also runs all forward "
        "passes before all backward passes"
    )
    return Blocked(reason, "Choose at least as many micro-batches as stages.")


def _not_in_chunks(situation: Situation) -> Blocked | None:
    """Return why ranks cannot have two stages each."""
    ranks = RANKS[situation.option(PIPELINE)]
    n_blocks = chain(situation.family, situation.config).n_blocks
    if n_blocks < CHUNKS * ranks:
        return Blocked(
            f"{counted(n_blocks, 'block')} cannot form {CHUNKS} stages on each of {ranks} ranks",
            "Choose fewer ranks, or a deeper model.",
        )
    if situation.option(SHARDING) != "off":
        return Blocked(
            "sharding gathers all blocks of a rank, but each of its stages computes only some",
            "Switch sharding off.",
            {SHARDING: "off"},
        )
    count = micro_batches_of(situation, ranks)
    if count % max(1, count // ranks):
        return Blocked(
            f"{count} micro-batches cannot be scheduled in rounds of {ranks}",
            f"Choose a number of micro-batches that is a multiple of {ranks}.",
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.schedule = option


def _evidence(option: str, observed: Observed) -> Finding:
    pipeline = None if observed.divided is None else observed.divided.pipeline
    if pipeline is None or not pipeline.step_counts:
        return no_effect("no step ran in pipeline stages")
    if option in IN_CHUNKS:
        forwards = pipeline.step_counts[0].forwards
        text = (
            f"each rank has {pipeline.chunks} stages; rank 0 computed "
            f"{counted(forwards, 'forward pass')} for "
            f"{counted(pipeline.micro_batches, 'micro-batch')}"
        )
        is_seen = pipeline.chunks > 1 and forwards == pipeline.chunks * pipeline.micro_batches
        if option == "zero_bubble":
            separate = [str(counts.weights) for counts in pipeline.step_counts]
            text += f"; separate gradients of weights, by rank: {', '.join(separate)}"
            is_seen = is_seen and any(counts.weights for counts in pipeline.step_counts)
        return effective(text) if is_seen else no_effect(text)
    in_flight = [counts.in_flight for counts in pipeline.step_counts]
    text = (
        f"micro-batches in flight at most, by rank: {', '.join(map(str, in_flight))} of "
        f"{pipeline.micro_batches}"
    )
    return effective(text) if set(in_flight) == {pipeline.micro_batches} else no_effect(text)


TOGGLE = Toggle(
    name="schedule",
    title="Pipeline schedule",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options={
        "1f1b": "One forward, one backward",
        "gpipe": "All forward, then all backward",
        "interleaved": "Interleaved, two stages per rank",
        "zero_bubble": "Zero bubble, two stages per rank",
    },
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="orders pipeline stages of the bundled families; your own model may not have stages",
    incomparable=WAITING_STAGES,
)
