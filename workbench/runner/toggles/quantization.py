"""Linear layers use quantized 8-bit weights, in inference only.

*INT8 weight-only* converts the quantized weights to the dtype of the inputs before each product:
the weights become small, but products do not become faster. *INT8 dynamic* and *FP8* also round the
inputs, with one scale per row or per tensor, and multiply in 8 bits. This is faster for large
products; for small ones the rounding costs more than it saves. The head, embeddings, routers,
experts and layers of odd sizes are not quantized.

A layer stores only its quantized weights. But the original weights also stay in memory while
unquantized configurations are kept ready, or after training. The memory in use therefore falls only
if a run has this option from its start. On a GPU the peak *of its own* does not include memory that
is held for other configurations. Quantized weights get no gradients, so they cannot be trained.

FP8 needs a GPU of compute capability 8.9 and half-precision inputs. The CPU computes the same
values with the reference, without the speed. The numerical check allows at most twice the error of
the scheme's definition, and at most twice the sum of independent roundings. On an H200, HYDRA
large, forward, 2 x 2,048 tokens in BF16 and eager mode: 18.4 ms unquantized, 29.4 with INT8
weight-only, 47.7 with INT8 dynamic, 37.9 with FP8 per tensor, 39.1 with FP8 per row. All are slower
there, because the rounding costs more than it saves without compilation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

import kernels
from kernels.measure import eight_bit
from kernels.quantized_matmul import SCHEMES
from models import Footprint
from models.layers.quantized_linear import QuantizedLinear, quantizable
from sessions.numbers import counted
from workbench.protocol import Blocked, Failure
from workbench.runner.toggles._imagined import Imagined
from workbench.runner.toggles._toggle import (
    Alternative,
    Finding,
    Fix,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)
from workbench.runner.toggles.precision import HALF, computing
from workbench.runner.variants.weights import Quantized

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

_MIB = 2**20


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "none":
        return None
    if situation.workload.trains:
        return Blocked(
            "quantized weights get no gradients, so they cannot be trained",
            "Choose inference.",
            {"workload": "forward"},
        )
    if not situation.on_gpu:
        return None
    dtype = computing(situation)
    reasons = _refusals(option, dtype)
    if not reasons:
        return None
    for precision, other in HALF.items():
        if other != dtype and not _refusals(option, other):
            return Blocked(reasons, f"Compute in {str(other)[6:]}.", {"precision": precision})
    return Blocked(reasons, "Choose another scheme.", {"quantization": "int8_weight_only"})


@functools.cache
def _refusals(scheme: str, dtype: torch.dtype) -> str:
    """Return why no kernel of this GPU supports the scheme and dtype; empty if one does."""
    x, codes = Imagined((32, 32), dtype), Imagined((32, 32), SCHEMES[scheme])
    scale = Imagined(() if scheme == "fp8_tensor" else (32,), torch.float32)
    reasons = []
    for name, implementation in kernels.OPS["quantized_matmul"].implementations.items():
        if name == "torch":
            continue
        refuses = implementation.refuses
        reason = implementation.missing("cuda")
        if reason is None and refuses is not None:
            reason = refuses(x, codes, scale, scheme)
        if reason is None:
            return ""
        if not reason.endswith(f"not {scheme}"):  # a kernel for other schemes explains nothing
            reasons.append(reason)
    return "; ".join(reasons)


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    if situation.option(TOGGLE.name) == TOGGLE.off and needed and 2 * needed.weights > needed.total:
        meaning = (
            "linear layers store one rounded byte per weight, but need more time to convert it"
        )
        yield Fix(40, {TOGGLE.name: "int8_weight_only"}, meaning)


def _apply(option: str, build: Build) -> None:
    build.quantization = option


def _evidence(option: str, observed: Observed) -> Finding:
    linears = {n: m for n, m in observed.model.named_modules() if isinstance(m, nn.Linear)}
    quantized = {n: m for n, m in linears.items() if isinstance(m, QuantizedLinear)}
    layers = [layer for name, layer in quantized.items() if name in observed.probe.ran]
    calls = observed.record.usage.get("quantized_matmul", {})
    # A fused operator of torch reads weights too, but not in the probe, whose hooks prevent it.
    read = {n for n, layer in quantized.items() if n in observed.probe.read or layer.was_read}
    if observed.codes is not None and read and not calls:
        return _read_finding(option, len(read), observed.codes)
    if observed.codes is None or not layers or not calls:
        return no_effect(f"none of {counted(len(linears), 'linear layer')} used quantized weights")
    share = sum(layer.codes_NK.numel() for layer in layers) / int(observed.ledger["parameters"])
    shown = ", ".join(f"{name} {count}" for name, count in calls.items())
    text = (
        f"{len(layers)} of {counted(len(linears), 'linear layer')}, {100 * share:.0f} % of all "
        f"parameters, used quantized weights; recorded calls: {shown}; "
        f"{_memory_text(observed.codes)}"
    )
    if other := len(read - observed.probe.ran):
        text += f"; {_read_text(other)}"
    if "torch" not in calls:
        return effective(text)
    if observed.situation.on_gpu:
        return no_effect(f"{text}; torch rounds but multiplies in full precision")
    return effective(f"{text} (torch is the reference: correct results, but not faster)")


def _read_finding(option: str, count: int, codes: Quantized) -> Finding:
    """Return the finding about quantized weights that no layer multiplies by."""
    text = f"{_read_text(count)}; {_memory_text(codes)}"
    if option == "int8_weight_only":  # this option always dequantizes
        return effective(text)
    return no_effect(f"no product used 8 bits: {text}")


def _read_text(count: int) -> str:
    """Return how many weights the model uses otherwise than by a call of their layer."""
    layers = counted(count, "linear layer")
    return f"each step dequantizes the weights of {layers}, which the model reads without a call"


def _memory_text(codes: Quantized) -> str:
    """Return the memory of the weights, with and without quantization, as text."""
    unquantized = {id(weight): weight.nbytes for weight in codes.unquantized().values()}
    plain = codes.plain_bytes + sum(unquantized.values())
    text = f"the weights need {codes.bytes / _MIB:.3g} MiB instead of {plain / _MIB:.3g}"
    if why := codes.why_plain():
        original = f"{codes.plain_bytes / _MIB:.3g} MiB of original weights"
        text += f", but {original} are in memory too: {why}"
    return text


TOGGLE = Toggle(
    name="quantization",
    title="Quantization",
    help=__doc__,
    group="Precision",
    stage=Stage.PRECISION,
    options={
        "none": "None",
        "int8_weight_only": "INT8 weight-only",
        "int8_dynamic": "INT8 dynamic",
        "fp8_tensor": "FP8 per tensor",
        "fp8_row": "FP8 per row",
    },
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    has_modules=lambda option, model: bool(quantizable(model, option)),
    presets={"low-memory": ("int8_weight_only",)},
    memory=lambda option, situation: {"quantization": "" if option == "none" else option},
    matrix_rate=lambda option, situation: eight_bit.unit_of(option, situation.device.type),
    fixes=_fixes,
    traits=dict.fromkeys(SCHEMES, (Trait.QUANTIZED,)),
    alternatives=dict.fromkeys(
        SCHEMES, (Alternative("Use unquantized weights.", {"quantization": "none"}),)
    ),
)
