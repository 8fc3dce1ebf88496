"""Gradient checkpointing: keep only a block's input and compute the rest again in backward.

Saves activation memory and costs about one more forward pass; *every second* (third, fourth) block
divides both. *By operator* keeps of every block the outputs of torch's own matrix products, of SDPA
kernels and of our own attention, which are dear to compute, and computes again the rest: less is
saved, and less time lost. The rest is what is cheap, and whatever is no operator of torch:
attention by a library or FlexAttention, adaptive attention, experts and state-space scans by
Triton. Without a need for the memory, all of them only cost time. (Chen et al., arXiv 1604.06174.)

On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16): every block takes 0.72 of the peak for
1.22 of the time, every second block 0.86 for 1.11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from models import Footprint
from sessions.sizes import size_text
from workbench.protocol import Blocked, Failure
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Finding,
    Fix,
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
    from workbench.runner.variants.observed import Observed

_DEAR = ("attention", "adaptive_attention", "moe_experts", "ssd_scan")  # operators of ours
# Their implementations that are made of torch's products and SDPA kernels, which a policy sees.
_OF_TORCH = frozenset(("torch", "manual", "chunked", "sdpa", "sdpa_math")) | frozenset(
    ("sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "grouped", "padded", "loop", "dense")
)
_OF_ATTENTION = _OF_TORCH | {"triton"}  # whose passes are operators, too


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "none":
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    if option == "operators" and situation.option("compile_scope") == "blocks":
        return Blocked(
            "a block that is compiled by itself is one operator to the policy, which then keeps "
            "nothing of it",
            "Compile the whole model.",
            {"compile_scope": "model"},
        )
    backend = situation.option("attention")
    seen = backend in _OF_ATTENTION or backend == "auto"
    if option == "operators" and not seen and not_called("attention", situation) is None:
        return Blocked(
            f"attention by {backend} is no operator of torch: the policy does not see it, and all "
            "of it would be computed again",
            "Let torch choose an SDPA kernel.",
            {"attention": "sdpa"},
        )
    return None


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    if failure.kind == "out-of-memory" and situation.workload.trains:
        meaning = "activations are computed again in the backward pass, which takes more time"
        yield Fix(20, {TOGGLE.name: "full"}, meaning)


def _apply(option: str, build: Build) -> None:
    build.transforms.append(lambda model: model.set_checkpointing(option))


def _evidence(option: str, observed: Observed) -> Finding:
    blocks = observed.model.checkpointed_blocks
    if not blocks:
        return no_effect("no block is checkpointed")
    text = (
        f"{counted(blocks, 'block')} of {observed.situation.config.n_layers} recompute in backward"
    )
    checkpointed, plain = _kept(observed)
    if not plain:
        return no_effect(f"{text}, but autograd keeps nothing: no parameter learns")
    if checkpointed >= plain:
        return no_effect(
            f"{text}, but of a short call autograd keeps {size_text(checkpointed)} with it and "
            f"{size_text(plain)} without"
        )
    sizes = f"{size_text(checkpointed)} in place of {size_text(plain)}"
    text += f"; of a short call autograd keeps {sizes}"
    if option != "operators":
        return effective(text)
    if not observed.record.kept_operators:
        return no_effect(f"{text}, and no operator's output was kept: they recompute everything")
    # A compiler traces a block more than once, so that only the names mean something there.
    compiled = observed.situation.has(Trait.COMPILED)
    names = ", ".join(
        name if compiled else f"{count} of {name}"
        for name, count in observed.record.kept_operators.items()
    )
    text += f"; of operators the outputs are kept: {names}"
    again = ", ".join(_not_seen(observed.record.usage))
    return effective(
        f"{text}; computed again too, being no operators of torch: {again}" if again else text
    )


def _kept(observed: Observed) -> tuple[int, int]:
    """Return the bytes that autograd saves of a short call, with and without checkpointing."""
    from workbench.runner.toggles import _effects as effects

    off = effects.without(observed.situation, TOGGLE.name, TOGGLE.off)
    return effects.kept_bytes(observed, observed.situation), effects.kept_bytes(observed, off)


def _not_seen(usage: Mapping[str, Mapping[str, int]]) -> list[str]:
    """List the costly operators, by implementation, whose outputs could not be saved."""
    return [
        f"{operator} by {name}"
        for operator in _DEAR
        for name in usage.get(operator, {})
        if name not in (_OF_ATTENTION if operator == "attention" else _OF_TORCH)
    ]


_OPTIONS = {
    "fourth": "Every fourth block",
    "third": "Every third block",
    "selective": "Every second block",
    "operators": "By operator",
    "full": "Every block",
}

TOGGLE = Toggle(
    name="checkpointing",
    title="Gradient checkpointing",
    help=__doc__,
    group="Memory",
    stage=Stage.MEMORY,
    options={"none": "Off"} | _OPTIONS,
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="acts block by block, and the blocks of a model of your own are not known",
    presets=dict.fromkeys(("development", "production-training", "low-memory"), ("full",)),
    memory=lambda option, situation: {"checkpointing": option},
    fixes=_fixes,
    traits=dict.fromkeys(_OPTIONS, (Trait.RECOMPUTED,)),
)
