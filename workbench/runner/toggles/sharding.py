"""Let each rank of data parallelism keep a share of what every one would hold: ZeRO and FSDP.

*Moments*: a rank holds and updates its share of AdamW's moments, and the updated weights are
gathered (ZeRO 1). *Moments and gradients*: gradients too are summed to the rank that needs them, as
the backward pass makes them, and none is kept whole (ZeRO 2). *All*: a rank holds its share of each
block's matrices, which are gathered before the block computes and given up after (ZeRO 3, as FSDP
does); embedding, head and vectors stay whole. The first two send as much as data parallelism alone;
the third gathers weights twice a step, and nothing hides that here. Pays where memory is short: for
a larger batch, or a model whose weights, gradients and moments do not fit together. On two H200s
HYDRA base (114M parameters in FP32, few tokens) holds 2,195 MiB a GPU at the peak of a step; with
shared moments 1,975, with gradients too 1,563, with weights too 1,396.

Between configurations the whole weights and moments are on the first GPU, which has to hold these,
and while steps are made a copy of them is on the host. Autocast's copies of gathered weights stay
until the backward pass, unless blocks are checkpointed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.toggles import data_parallel
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
    from workbench.runner.ranks.shards import Held
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.variant import Arm


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    if situation.option("data_parallel") == "off":
        return data_parallel.TOGGLE.blocked("2", situation) or Blocked(
            "a step on one device has no ranks to share it out to",
            "Divide each step among two ranks.",
            {"data_parallel": "2"},
        )
    if option != "full":
        return None
    if situation.option("compile") != "off":
        return Blocked(
            "what is compiled does not see the weights of a block come and go",
            "Share out moments and gradients only.",
            {"sharding": "gradients"},
        )
    if situation.option("activation_offload") == "on":
        return Blocked(
            "what autograd saves would go to the host, gathered weights with it",
            "Checkpoint blocks instead.",
            {"activation_offload": "off", "checkpointing": "full"},
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.sharding = option


def _evidence(option: str, arm: Arm) -> Finding:
    divided = arm.divided
    shards = None if divided is None else divided.shards
    if divided is None or shards is None or shards.held is None:
        return no_effect("no step was made by ranks that keep shares")
    held = shards.held
    text = _told(option, held)
    if shards.stays:
        text += "; the whole stays beside it where captured graphs of others read it"
    if not _is_less(option, held):
        return no_effect(text)
    if divided.differing:
        return no_effect(f"{text}; no longer alike: {counted(divided.differing, 'parameter')}")
    return effective(f"{text}; gathered, the weights of all ranks are alike to the last bit")


def _told(option: str, held: Held) -> str:
    """What the first rank holds, and what a step sends."""
    parts = [f"{size_text(held.moments)} of {size_text(held.whole_moments)} of moments"]
    if option != "optimizer":
        parts.append(
            f"{size_text(held.gradients)} of {size_text(held.whole_weights)} of gradients (at most "
            f"{size_text(held.most_gradients)} while it makes them)"
        )
    if option == "full":
        whole = size_text(held.whole_weights)
        parts.append(f"{size_text(held.weights)} of {whole} of weights between steps")
    return (
        f"a rank holds {', '.join(parts)}; a step has "
        f"{counted(held.scatters, 'reduce-scatter')} of {size_text(held.scattered_bytes)} and "
        f"{counted(held.gathers, 'all-gather')} of {size_text(held.gathered_bytes)}"
    )


def _is_less(option: str, held: Held) -> bool:
    """Whether each thing that is to be shared out takes less than the whole."""
    less = held.moments < held.whole_moments and held.scatters > 0 and held.gathers > 0
    if option != "optimizer":
        less = less and held.gradients < held.whole_weights
    return less and (option != "full" or held.weights < held.whole_weights)


TOGGLE = Toggle(
    name="sharding",
    title="Sharding",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options={
        "off": "Off",
        "optimizer": "Moments",
        "gradients": "Moments and gradients",
        "full": "All, weights too",
    },
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="divides what data parallelism does, which is not known of inputs of your own",
)
