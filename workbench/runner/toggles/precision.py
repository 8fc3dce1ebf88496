"""The number format of the matrix products and of the weights.

FP32 uses full precision, also in cuDNN's convolutions, where torch's default is TF32. TF32 stores
FP32 tensors and multiplies with 10-bit mantissas on tensor cores. AMP stores FP32 weights and casts
the inputs of matrix products (FP16 with a loss scaler in training). Pure BF16 also stores the
weights and the optimizer's state in BF16. On an H200, HYDRA base training (8 x 1,024 tokens), as a
fraction of FP32's time: TF32 0.34, AMP FP16 0.23, AMP BF16 0.22, pure BF16 0.19.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from models import Footprint
from sessions.numbers import counted
from workbench.protocol import Blocked, Failure
from workbench.runner.model_state import rng
from workbench.runner.profiling import instrumented
from workbench.runner.profiling.eager import eager
from workbench.runner.roofline.ceilings import fp32_products
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Fix,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
    unknown,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

# A product of float32 numbers rounds at about 1e-7, one of 10-bit mantissas at about 3e-4.
_TF32_ERROR = 1e-5
_AUTOCAST = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
HALF = _AUTOCAST | {"bf16": torch.bfloat16}  # dtypes of linear layers' outputs, unless float32
_AMP = ("amp_bf16", "amp_fp16")  # options in order of preference
_WEIGHTS = ("bf16", "amp_fp16")
# The name in the families' footprints, and the matrix rate, by option.
_SIZES = {"fp32": "fp32", "tf32": "fp32", "amp_fp16": "amp", "amp_bf16": "amp", "bf16": "half"}
_RATES = {
    "fp32": "float32",
    "tf32": "tf32",
    "amp_fp16": "float16",
    "amp_bf16": "bfloat16",
    "bf16": "bfloat16",
}


def computing(situation: Situation) -> torch.dtype:
    """Return the dtype of linear layers' outputs."""
    return HALF.get(situation.option(TOGGLE.name), torch.float32)


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option in ("tf32", "amp_fp16") and not situation.on_gpu:
        return NEEDS_GPU
    if option == "tf32" and not situation.hardware.tf32:
        return Blocked(
            f"{situation.hardware.name} has no TF32 tensor cores (Ampere and later have them)",
            "Choose AMP FP16 instead.",
            {"precision": "amp_fp16"},
        )
    # The CPU also computes BF16, but not always faster; this can be measured.
    if option in ("amp_bf16", "bf16") and situation.on_gpu and not situation.hardware.bf16:
        return Blocked(
            f"{situation.hardware.name} has no BF16 arithmetic (Ampere and later have them)",
            "Choose AMP FP16 instead.",
            {"precision": "amp_fp16"},
        )
    return None


# Messages of torch about an operator that does not support the dtypes of its inputs.
_REFUSED_DTYPE = re.compile(
    r"same (data ?)?type|same dtype|scalar type|not implemented for '(BFloat16|Half)'"
    r"|should be the same|unsupported dtype",
    re.IGNORECASE,
)


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    name, option = TOGGLE.name, situation.option(TOGGLE.name)
    if failure.kind == "out-of-memory":
        half = "activations need half the memory"
        if not situation.workload.trains:
            if option != "bf16":  # autocast would keep copies of the weights
                yield Fix(30, {name: "bf16"}, f"weights and {half}, with lower precision")
        elif option in ("fp32", "tf32"):
            yield Fix(30, {name: "amp_bf16"}, f"{half}, with lower precision")
            yield Fix(30, {name: "amp_fp16"}, f"{half}, with a smaller range")
    elif failure.kind == "nan":
        if option in ("amp_fp16", "bf16"):
            meaning = "a larger range than FP16" if option == "amp_fp16" else "weights in FP32"
            yield Fix(10, {name: "amp_bf16"}, meaning)
        if option != "fp32":
            yield Fix(10, {name: "fp32"}, "full precision, with more time and memory")
    elif failure.kind == "model" and option in HALF and _REFUSED_DTYPE.search(failure.sentence):
        if option == "bf16":
            yield Fix(10, {name: "amp_bf16"}, "weights stay in FP32, where the model may need it")
        yield Fix(20, {name: "fp32"}, "the model may have tensors that stay in FP32")


def _apply(option: str, build: Build) -> None:
    if option == "tf32":
        build.flags.append(functools.partial(fp32_products, tf32=True))
    elif option == "bf16":
        build.weights_dtype = torch.bfloat16
    else:
        build.autocast = _AUTOCAST[option]
        build.scales_loss = option == "amp_fp16" and build.situation.workload.trains


def _evidence(option: str, observed: Observed) -> Finding:
    if option == "tf32":
        return _tf32_finding(observed)
    requested = _AUTOCAST.get(option, torch.bfloat16)
    if observed.probe.linear_dtypes == {requested}:
        weights_text = (
            "weights too" if option == "bf16" else f"weights stay {observed.weights_dtype}"
        )
        return effective(f"every linear layer computed in {requested}; {weights_text}")
    if not observed.probe.linear_dtypes:
        return _products_finding(option, requested, observed)
    observed_dtypes = ", ".join(sorted(str(dtype) for dtype in observed.probe.linear_dtypes))
    return no_effect(f"linear layers computed in {observed_dtypes}")


def _products_finding(option: str, requested: torch.dtype, observed: Observed) -> Finding:
    """Return a finding from the operators of a call, for a model without linear layers of torch."""
    model = observed.model
    products = instrumented.ProductDtypes()
    divided = observed.divided
    with (
        rng.put_back(model, observed.situation.device),
        rng.evaluating(model),
        eager(),
        torch.no_grad(),
        products,
    ):
        if divided is None or divided.fully_shard is None:
            observed.autocast(model)(*observed.batches.few)
        else:  # all ranks gather the shards
            with divided.evaluating("outputs", observed):
                divided.outputs(observed)
    product_dtypes = {dtype for _, dtype in products.seen}
    dtypes = sorted(product_dtypes, key=lambda dtype: (dtype != requested, str(dtype)))
    texts = []
    for dtype in dtypes:
        counts = [
            counted(n, kind)
            for (kind, product_dtype), n in products.seen.items()
            if product_dtype == dtype
        ]
        texts.append(f"{' and '.join(counts)} of torch computed in {dtype}")
    if option == "bf16" and observed.weights_dtype == requested:
        return effective("; ".join([f"weights are {requested}", *texts]))
    if not texts:
        return unknown("no matrix product of torch ran, so the precision could not be observed")
    text = f"{'; '.join(texts)}; weights stay {observed.weights_dtype}"
    return effective(text) if requested in dtypes else no_effect(text)


def _tf32_finding(observed: Observed) -> Finding:
    with instrumented.Products() as products:
        instrumented.call(observed)
    if not products.errors:
        return no_effect("this model calls no FP32 matrix product or convolution of torch")
    parts = []
    for name, errors in products.errors.items():
        rounded = sum(error > _TF32_ERROR for error in errors)
        parts.append(f"{rounded} of {counted(len(errors), name)} (error up to {max(errors):.1e})")
    text = f"rounded to TF32, compared with FP64: {' and '.join(parts)}"
    worst = max(max(errors) for errors in products.errors.values())
    return effective(text) if worst > _TF32_ERROR else no_effect(text)


TOGGLE = Toggle(
    name="precision",
    title="Precision",
    help=__doc__,
    group="Precision",
    stage=Stage.PRECISION,
    options={
        "fp32": "FP32",
        "tf32": "TF32",
        "amp_fp16": "AMP FP16",
        "amp_bf16": "AMP BF16",
        "bf16": "Pure BF16",
    },
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    traits={option: (Trait.ROUNDED,) for option in _RATES if option != "fp32"},
    presets={
        "development": _AMP,
        "production-inference": _AMP,
        "production-training": _AMP,
        "low-memory": _WEIGHTS,
        "latency": _WEIGHTS,
        "throughput": _AMP,
        "flash-first": _AMP,
    },
    memory=lambda option, situation: {"precision": _SIZES[option]},
    matrix_rate=lambda option, situation: _RATES[option],
    fixes=_fixes,
)
