"""The kernel that computes attention: an automatic choice, or one backend by name.

*Automatic* times the backends on this GPU, once for each class of shapes, and uses the fastest: by
GPU time in captured and compiled steps, otherwise by the larger of GPU and host time. The evidence
has the numbers. The flash ratio is the fraction of calls that a fused kernel computed; a fallback
is a call that stored the complete attention matrix. A backend that is chosen by name and cannot run
raises an error; it never falls back silently. On an H200, HYDRA base training (8 x 1,024 tokens,
AMP BF16), relative to the step with SDPA cuDNN: the bundled Triton backend 0.98 (captured), flex
1.03, SDPA flash 1.05, efficient 1.17, math 2.42, manual 2.50, chunked 2.98; the matrix of math and
manual needs 1.5 and 1.7 times the memory.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels
from sessions.model import Scalar
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.profiling import instrumented
from workbench.runner.toggles import conflict
from workbench.runner.toggles._kernel_toggle import (
    TITLES,
    against_off,
    triton_traits,
    usage_finding,
    with_titles,
)
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.interfaces import MarkedVariant
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

_TITLES = {
    "manual": "Manual (S x S matrix)",
    "chunked": "Chunked, memory-efficient",
    "sdpa_math": "SDPA math",
    "sdpa_flash": "SDPA flash",
    "sdpa_efficient": "SDPA memory-efficient",
    "sdpa_cudnn": "SDPA cuDNN",
    "sdpa": "SDPA, torch's choice",
    "flex": "FlexAttention",
    "xformers": "xFormers",
    "flash2": "FlashAttention 2",
    "flash3": "FlashAttention 3",
    "flash4": "FlashAttention 4",
    "triton": "Triton (bundled)",
}


def _options() -> dict[str, str]:
    backends = [name for name in kernels.OPS["attention"].implementations if name != "auto"]
    return {"auto": "Automatic"} | {name: _TITLES.get(name, name) for name in backends}


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "auto":
        return None
    reason = kernels.OPS["attention"].unavailable(option, situation.device.type)
    if reason is not None:
        if not situation.on_gpu:
            return NEEDS_GPU
        fix = "Choose Automatic, or run `workbench doctor` to see what it needs."
        return Blocked(reason, fix)
    if option == "flex" and not situation.on_gpu:
        wrong = "on the CPU, torch.compile refuses FlexAttention or gives it wrong results"
        if compiled := conflict(situation, Trait.COMPILED, wrong):
            return compiled
    workload, window = situation.workload, getattr(situation.config, "window", 0)
    wide = situation.on_gpu and situation.option("precision") in ("fp32", "tf32")
    demands = (workload.trains, _cached_queries(situation), window)
    if not (wide or any(demands)):
        return None
    refusal = functools.partial(_refuses, option, situation.device.type, *demands)
    reason = refusal(torch.float32 if wide or not situation.on_gpu else torch.bfloat16)
    if reason is None:
        return None
    if wide and refusal(torch.bfloat16) is None:
        return Blocked(reason, "Compute in 16 bits.", {"precision": "amp_bf16"})
    return Blocked(reason, "Choose Automatic or another backend.")


def _cached_queries(situation: Situation) -> int:
    """Return how many tokens attend to a cache at once, 8 for more; 0 without a cache."""
    settings = situation.configuration.settings
    chunk = int(settings.get("chunk", 0))
    return min(chunk, 8) if 0 < chunk < int(settings["sequence"]) else situation.workload.decodes


@functools.cache
def _refuses(
    option: str, device_type: str, trains: bool, cached: int, window: int, dtype: torch.dtype
) -> str | None:
    """Return why a backend cannot compute what a workload needs in a precision.

    A workload may need gradients, ``cached`` tokens against a cache, or a window of keys.
    """
    implementation = kernels.OPS["attention"].implementation(option)
    if implementation.refuses is None:
        return None
    # On a GPU use tensors without memory, which do not disturb running work. They import Dynamo,
    # which takes seconds, so the CPU uses small real tensors.
    known = contextlib.nullcontext() if device_type == "cpu" else FakeTensorMode()
    with known:
        make = functools.partial(torch.empty, dtype=dtype, device=device_type)
        q, k = (make(1, 1, n, 64, requires_grad=trains) for n in (cached or 8, 8))
        length = make((), dtype=torch.int64) if cached else None
        return implementation.refuses(q, k, k, True, window or None, None, length)


def _apply(option: str, build: Build) -> None:
    build.choose_kernel("attention", option)


def _evidence(option: str, observed: Observed) -> Finding:
    if option == "auto":
        return _chosen(observed.record.facts, observed.record.reasons)
    usage = observed.record.usage
    if adaptive := usage.get("adaptive_attention") if not usage.get("attention") else None:
        names = " and ".join(TITLES.get(name, name) for name in adaptive)
        return no_effect(f"adaptive attention by {names} computes without an attention backend")
    finding = against_off(
        usage_finding("attention", option, observed.record),
        "attention",
        observed,
        "attention",
        "auto",
    )
    return _sdpa_choice(finding, observed) if option == "sdpa" else finding


def _calls(observed: Observed) -> bool:
    return "attention_calls" in observed.record.facts


def _chosen(facts: Mapping[str, Scalar], reasons: Mapping[str, tuple[str, str]]) -> Finding:
    """Return what ``auto`` chose, and why not other backends; a fallback is no effect."""
    fallbacks, calls = int(facts["attention_fallbacks"]), int(facts["attention_calls"])
    text = f"chose {facts['attention_kernels']}; flash ratio {facts['attention_flash_ratio']:.2f}"
    text += (
        f", {fallbacks} of {counted(int(calls), 'call')} fell back to the complete attention matrix"
    )
    if why := str(facts["attention_reason"]):
        explains_choice = why.startswith((kernels.PREFERRED, kernels.MEASURED, kernels.NOT_TIMED))
        text += f"; {with_titles(why, _TITLES)}" if explains_choice else f"; not used: {why}"
    elif reasons.get("attention", ("", ""))[1] == kernels.REQUESTED:
        text += "; the model selects this itself, as AdaAttn does on CPUs, where SDPA is less exact"
    return no_effect(text) if fallbacks else effective(text)


def _sdpa_choice(ran: Finding, variant: MarkedVariant) -> Finding:
    """Return which of its kernels torch chose, and why no fused one."""
    with instrumented.AttentionChoices(contextlib.nullcontext) as choices:
        instrumented.call(variant)
    if ran.status != "effective" or not choices.chosen:
        return ran
    shown = ", ".join(f"{name} {count}" for (name, _), count in choices.chosen.items())
    text = f"{ran.text}; torch chose {shown}"
    if any(name == "math" for name, _ in choices.chosen):
        why = "; ".join(dict.fromkeys(choices.refused)) or "torch gives no reason"
        return no_effect(f"{text}; it fell back to math because: {why}")
    return effective(text)


TOGGLE = Toggle(
    name="attention",
    title="Attention backend",
    help=__doc__,
    group="Attention",
    stage=Stage.ATTENTION,
    options=_options(),
    apply=_apply,
    evidence=_evidence,
    chooses=_calls,
    blocked=_blocked,
    operators=("attention",),
    traits=triton_traits(kernels.OPS["attention"].implementations),
    presets={"flash-first": ("flash4", "flash3", "flash2", "sdpa_flash")},
    memory=lambda option, situation: {"attention": option},
)
