"""Gradient checkpointing: keep only the input of a block and recompute the rest in backward.

Saves activation memory and costs about one more forward pass; with *Every second block* (third,
fourth) both are divided by that number. *By operator* keeps the outputs that are expensive to
compute, and recomputes the rest of each block: the kept outputs are those of torch's matrix
products, of SDPA kernels and of the bundled attention. It saves less memory and costs less time.
The rest is everything that is cheap to compute or is not a torch operator, such as attention by a
library or FlexAttention, adaptive attention, experts and state-space scans by Triton. If memory is
not short, checkpointing only costs time. (Chen et al., arXiv 1604.06174.)

In your own model the blocks are the entries of its outermost ``nn.ModuleList``s. A block that would
not compute the same again is left out: it changes buffers (BatchNorm), attributes or its inputs, or
draws numbers of Python's, numpy's or its own generator. So is one that draws random numbers in a
captured step.

On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16): with every block 0.72 of the peak
memory in 1.22 times the time, with every second block 0.86 in 1.11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from models import Footprint
from sessions.numbers import counted
from sessions.sizes import size_text
from workbench.protocol import Blocked, Failure
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._own_blocks import (
    all_blocks,
    checkpoint_blocks,
    recomputed_blocks,
    restore_unequal,
)
from workbench.runner.toggles._ranks import SHARDING
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
from workbench.runner.user_models.user_model import OwnModel

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed
    from workbench.runner.workloads import Compute

_EXPENSIVE = ("attention", "adaptive_attention", "moe_experts", "ssd_scan")  # ``kernels`` operators
# Implementations that consist of torch's products and SDPA kernels, which the policy can keep.
_OF_TORCH = frozenset(("torch", "manual", "chunked", "sdpa", "sdpa_math")) | frozenset(
    ("sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "grouped", "padded", "loop", "dense")
)
_OF_ATTENTION = _OF_TORCH | {"triton"}  # registered as torch operators


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "none":
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    if option == "operators" and (why := _compiled_blocks(situation)):
        return why
    backend = situation.option("attention")
    is_torch_operator = backend in _OF_ATTENTION or backend == "auto"
    if (
        option == "operators"
        and not is_torch_operator
        and not_called("attention", situation) is None
    ):
        return Blocked(
            f"attention by {backend} is not a torch operator, so its output could not be kept and "
            "would be recomputed",
            "Let torch choose an SDPA kernel.",
            {"attention": "sdpa"},
        )
    return None


def _compiled_blocks(situation: Situation) -> Blocked | None:
    """Return why outputs of a block's operators cannot be saved; None if they can."""
    reason = (
        "blocks that are compiled separately are single operators, and this option cannot keep "
        "parts of them"
    )
    if situation.option("compile_scope") == "blocks":
        return Blocked(reason, "Compile the whole model.", {"compile_scope": "model"})
    if situation.has(Trait.COMPILED) and situation.option(SHARDING) != "off":
        return Blocked(
            f"sharding compiles each block separately; {reason}",
            "Checkpoint complete blocks.",
            {"checkpointing": "full"},
        )
    return None


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    if failure.kind == "out-of-memory" and situation.workload.trains:
        meaning = "the backward pass recomputes activations, which takes more time"
        yield Fix(20, {TOGGLE.name: "full"}, meaning)


def _apply(option: str, build: Build) -> None:
    def transform(model: Model) -> None:
        if isinstance(model, OwnModel):
            model.patches[TOGGLE.name] = checkpoint_blocks(model, option)
        else:
            model.set_checkpointing(option)

    def examined(compute: Compute) -> Compute:
        if isinstance(build.model, OwnModel):
            restore_unequal(build.model, build.model.patches[TOGGLE.name])
        return compute

    build.transforms.append(transform)
    build.compute_wrappers.append(examined)


def _evidence(option: str, observed: Observed) -> Finding:
    if isinstance(observed.model, OwnModel):
        blocks, of_all, left = _own_blocks(observed.model, observed.situation)
    else:
        blocks, of_all, left = _bundled_blocks(observed)
    if not blocks:
        return no_effect(f"no block is checkpointed{left}")
    text = f"the backward pass recomputes {counted(blocks, 'block')} of {of_all}{left}"
    checkpointed, plain = _kept(observed)
    if not plain:
        return no_effect(f"{text}, but autograd saves nothing: no parameter is trained")
    if checkpointed >= plain:
        return no_effect(
            f"{text}, but for a short call autograd saves {size_text(checkpointed)} with "
            f"checkpointing and {size_text(plain)} without"
        )
    sizes = f"{size_text(checkpointed)} instead of {size_text(plain)}"
    text += f"; for a short call autograd saves {sizes}"
    if option != "operators":
        return effective(text)
    if not observed.record.kept_operators:
        return no_effect(f"{text}, but no operator's output was saved: everything is recomputed")
    # A compiler traces a block more than once, and a capture runs it in several steps.
    is_repeated = observed.situation.has(Trait.COMPILED, Trait.CAPTURED)
    names = ", ".join(
        name if is_repeated else f"{count} of {name}"
        for name, count in observed.record.kept_operators.items()
    )
    text += f"; kept outputs of operators: {names}"
    recomputed = ", ".join(_not_seen(observed.record.usage))
    return effective(
        f"{text}; also recomputed, because they are not torch operators: {recomputed}"
        if recomputed
        else text
    )


def _bundled_blocks(observed: Observed) -> tuple[int, str, str]:
    """Return how many blocks are checkpointed, of how many, and nothing else."""
    pipeline = None if observed.divided is None else observed.divided.pipeline
    if pipeline is None:
        of_all = str(observed.situation.config.n_layers)
    else:
        of_all = f"this rank's {len(pipeline.stage.blocks)}"
    return observed.record.checkpointed_blocks, of_all, ""


def _own_blocks(model: OwnModel, situation: Situation) -> tuple[int, str, str]:
    """Return how many blocks are checkpointed, of how many, and why some are not."""
    if not (blocks := all_blocks(model)):
        return 0, "0", ": the model has no nn.ModuleList, whose entries would be its blocks"
    captured = situation.has(Trait.CAPTURED) and not situation.has(Trait.COMPILED)
    reasons = recomputed_blocks(model, model.patches[TOGGLE.name], captured=captured)
    left = {path: why for path, why in reasons.items() if why}
    path, why = next(iter(left.items()), ("", ""))
    more = f", and {len(left) - 1} more" if len(left) > 1 else ""
    text = f"; left out: {path}, which {why}{more}" if left else ""
    return len(reasons) - len(left), str(len(blocks)), text


def _kept(observed: Observed) -> tuple[int, int]:
    """Return the bytes that autograd saves in a short call, with and without checkpointing."""
    from workbench.runner.toggles import _effects as effects

    off_situation = effects.without(observed.situation, TOGGLE.name, TOGGLE.off)
    checkpointed = effects.kept_bytes(observed, observed.situation)
    return checkpointed, effects.kept_bytes(observed, off_situation)


def _not_seen(usage: Mapping[str, Mapping[str, int]]) -> list[str]:
    """List the costly operators, by implementation, whose outputs could not be saved."""
    return [
        f"{operator} by {name}"
        for operator in _EXPENSIVE
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
    has_modules=lambda option, model: bool(all_blocks(model)),
    presets=dict.fromkeys(("development", "production-training", "low-memory"), ("full",)),
    memory=lambda option, situation: {"checkpointing": option},
    fixes=_fixes,
    traits=dict.fromkeys(_OPTIONS, (Trait.RECOMPUTED,)),
)
