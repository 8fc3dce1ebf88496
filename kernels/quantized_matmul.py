"""Product with a quantised, frozen weight: FP8 per tensor or per row, INT8 dynamic or weight-only.

    y = x^ W^^T,    v^ = s round(v / s),    s = max |v| / largest code

x [..., K] is quantised in each call, except in ``int8_weight_only``, where x^ = x; W [N, K] was
quantised before by ``quantize_weight``. Scales are per tensor (``fp8_tensor``) or per row of x and
of W (the others), in FP32. Quantised values, called codes, are INT8 from -127 to 127 or FP8 E4M3 up
to 448 (Micikevicius et al. 2022, arXiv 2209.05433). INT8 dynamic is LLM.int8()'s vector-wise
product (Dettmers et al. 2022, arXiv 2208.07339) without its outliers.

Error against the product of the unquantised tensors: a code is off by at most half a step, so with
e(v) = s / 2 for INT8 and e(v) = max(|v| / 16, s / 1024) for FP8 (half of 2^-3 relative; of 2^-9 s
below its normal numbers),

    |y - x W^T|_ij <= sum over k of e(x_ik) |W_jk| + |x_ik| e(W_jk) + e(x_ik) e(W_jk).

Only x gets a gradient, straight through its rounding (Bengio et al. 2013, arXiv 1308.3432):
dx = dy W^. This is exact for ``int8_weight_only``; otherwise y is a staircase in x, whose true
slope is zero. Weights and scales are constants.

``scaled_mm`` and ``int_mm`` are torch's FP8 and INT8 kernels. ``dequantize``, for weight-only, is
torch's ordinary product with the dequantised weight: it saves memory, not time.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels import hardware
from kernels.core.autograd import applied
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
    autocast_dtype,
    floating,
    random_tensor,
    same_device,
    tensor_bytes,
    without_autocast,
)

SCHEMES: dict[str, torch.dtype] = {
    "int8_dynamic": torch.int8,
    "int8_weight_only": torch.int8,
    "fp8_tensor": torch.float8_e4m3fn,
    "fp8_row": torch.float8_e4m3fn,
}
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
FEWEST_ROWS = 17  # fewest rows that torch._int_mm accepts on a GPU
_FP8_UNITS = hardware.needs("torch's FP8 product", (8, 9))
_INT8_UNITS = hardware.needs("torch's INT8 product", (7, 5))


def quantized_matmul(
    x: Tensor,
    weight_NK: Tensor,
    scale: Tensor,
    scheme: str = "int8_dynamic",
    *,
    impl: str | None = None,
) -> Tensor:
    """Multiply ``x`` [..., K] by a weight of ``quantize_weight``; returns [..., N] of x's dtype.

    ``scale`` [N], or [] for fp8_tensor, in FP32. Only x gets a gradient, straight through its
    rounding. Under autocast x is cast like the inputs of torch's products. ``impl``:
    auto, scaled_mm, int_mm, dequantize or torch. Raises ``Mistake`` if the arguments do not fit
    together and ``Unavailable`` for an implementation that cannot run.
    """
    _validate(x, weight_NK, scale, scheme)
    return run(OP, impl, x.to(autocast_dtype(x) or x.dtype), weight_NK, scale, scheme)


def quantize_weight(weight_NK: Tensor, scheme: str = "int8_dynamic") -> tuple[Tensor, Tensor]:
    """Return a quantised weight [N, K] and FP32 scales, [N] or (fp8_tensor) []; see the module.

    Raises ``Mistake`` for an unknown scheme or a tensor that is no matrix.
    """
    floating("quantize_weight", weight=weight_NK)
    _known("quantize_weight", scheme)
    if weight_NK.dim() != 2 or not weight_NK.numel():
        raise Mistake(
            f"quantize_weight: weight must be [N, K] and not empty, but is {tuple(weight_NK.shape)}"
        )
    codes, scale = quantize(weight_NK, scheme)
    return codes, scale.reshape(() if scheme == "fp8_tensor" else -1)


def dequantize_weight(weight_NK: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight [N, K] that ``quantize_weight`` quantised, in ``dtype``."""
    wide = accumulator(dtype)
    # In place: a layer's complete weight exists once in FP32, and not twice, beside its result.
    return weight_NK.to(wide).mul_(scale.to(wide).unsqueeze(-1)).to(dtype)


def quantize(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Return quantised ``x`` and its scales: [..., 1], or [1, ..., 1] for one scale."""
    dtype = SCHEMES[scheme]
    x = x.detach()
    if x.dtype == torch.float64:  # codes must not depend on the precision of the computation
        x = x.float()
    if scheme != "fp8_tensor":
        top = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True, dtype=torch.float32)
    elif x.numel():
        top = torch.linalg.vector_norm(x, torch.inf, dtype=torch.float32)
        top = top.reshape((1,) * x.dim())
    else:
        top = x.new_zeros((1,) * x.dim(), dtype=torch.float32)
    scale = (top / LARGEST[dtype]).clamp_min(torch.finfo(torch.float32).tiny)
    # In range without a clamp: the largest value is within two roundings of the largest code.
    codes = x / scale
    return (codes.round_() if dtype == torch.int8 else codes).to(dtype), scale


def _known(function: str, scheme: str) -> None:
    if scheme not in SCHEMES:
        raise Mistake(f"{function}: scheme must be one of {tuple(SCHEMES)}, not {scheme!r}")


def _validate(x: Tensor, weight: Tensor, scale: Tensor, scheme: str) -> None:
    floating("quantized_matmul", x=x)
    _known("quantized_matmul", scheme)
    same_device("quantized_matmul", x, weight=weight, scale=scale)
    if weight.dtype != SCHEMES[scheme] or scale.dtype != torch.float32:
        raise Mistake(
            f"quantized_matmul: {scheme} needs a {SCHEMES[scheme]} weight with torch.float32 "
            f"scales, as quantize_weight returns them, not {weight.dtype} and {scale.dtype}"
        )
    if x.dim() == 0 or weight.dim() != 2 or not weight.numel() or x.shape[-1] != weight.shape[1]:
        raise Mistake(
            f"quantized_matmul: expected x [..., K] and a weight [N, K] that is not empty, but got "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    wanted = () if scheme == "fp8_tensor" else weight.shape[:1]
    if scale.shape != wanted:
        raise Mistake(
            f"quantized_matmul: with {scheme} and a weight {tuple(weight.shape)} scale must be "
            f"{tuple(wanted)}, but is {tuple(scale.shape)}"
        )
    if weight.requires_grad or scale.requires_grad:
        raise Mistake(
            "quantized_matmul: weight and scale get no gradient, but one of them requires it; "
            "detach them"
        )


def reference(x: Tensor, weight_NK: Tensor, scale: Tensor, scheme: str = "int8_dynamic") -> Tensor:
    """Compute the definition: quantise, dequantise, multiply."""
    wide = accumulator(x.dtype)
    taken = x.to(wide)
    if scheme != "int8_weight_only":
        codes, x_scale = quantize(x, scheme)
        # The first term is zero, but carries the complete gradient.
        taken = (taken - taken.detach()) + codes.to(wide) * x_scale.to(wide)
    with without_autocast(x):
        return (taken @ dequantize_weight(weight_NK, scale, wide).T).to(x.dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, scale: Tensor, scheme: str, kernel: str
    ) -> Tensor:
        ctx.save_for_backward(weight, scale)
        with without_autocast(rows):
            if kernel == "dequantize":
                return rows @ dequantize_weight(weight, scale, rows.dtype).T
            if kernel == "int_mm":
                return _int_mm(rows, weight, scale, scheme)
            return _scaled_mm(rows, weight, scale, scheme)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight, scale = ctx.saved_tensors
        with without_autocast(dy):
            return dy @ dequantize_weight(weight, scale, dy.dtype), None, None, None, None


def _int_mm(x: Tensor, weight: Tensor, scale: Tensor, scheme: str) -> Tensor:
    codes, x_scale = quantize(x, scheme)
    rows = codes.shape[0]
    if codes.is_cuda and rows < FEWEST_ROWS:
        codes = pad(codes, (0, 0, 0, 32 - rows))
    sums = torch._int_mm(codes, weight.contiguous().T)[:rows]
    y = sums.float() * x_scale * scale
    # A .to() that changes nothing would be a second name of y: torch 2.11 compiles that without
    # a gradient, as for each tensor that an autograd function computes and returns twice.
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _scaled_mm(x: Tensor, weight: Tensor, scale: Tensor, scheme: str) -> Tensor:
    codes, x_scale = quantize(x, scheme)
    return torch._scaled_mm(
        codes,
        weight.contiguous().T,
        scale_a=x_scale,
        scale_b=scale.reshape(1, -1),
        out_dtype=x.dtype,
        # Otherwise Hopper accumulates complete rows in less than FP32.
        use_fast_accum=False,
    )


def _by(kernel: str) -> Any:
    def call(x: Tensor, weight: Tensor, scale: Tensor, scheme: str) -> Tensor:
        # Reshaped out here: autograd forbids writing in place to a view that a function returns.
        rows = x.reshape(-1, x.shape[-1])
        y = applied(_Product, rows, weight, scale, scheme, kernel)
        return y.view(*x.shape[:-1], weight.shape[0])

    return call


def _scaled_mm_refuses(x: Tensor, weight: Tensor, scale: Tensor, scheme: str) -> str | None:
    if not scheme.startswith("fp8"):
        return f"supports FP8 and not {scheme}"
    if scheme == "fp8_row" and hardware.of(x.device).capability < (9, 0):
        return "scales per row need compute capability 9.0"
    # Hopper's FP8 units do not keep all bits of FP32 while they accumulate.
    fitting = (torch.bfloat16,) if scheme == "fp8_row" else (torch.bfloat16, torch.float16)
    if x.dtype not in fitting:
        dtypes = " or ".join(str(dtype)[6:] for dtype in fitting)
        return f"{scheme} returns only {dtypes}, not {str(x.dtype)[6:]}"
    if weight.shape[0] % 16 or weight.shape[1] % 16:
        return f"N and K must be multiples of 16, but the weight is {tuple(weight.shape)}"
    return None if x.numel() else "does not support empty tensors"


def _int_mm_refuses(x: Tensor, weight: Tensor, scale: Tensor, scheme: str) -> str | None:
    if scheme != "int8_dynamic":
        return f"supports int8_dynamic and not {scheme}"
    if x.dtype == torch.float64:
        return "applies scales in FP32 and does not support FP64"
    if x.is_cuda and (weight.shape[0] % 8 or weight.shape[1] % 8):
        return f"N and K must be multiples of 8, but the weight is {tuple(weight.shape)}"
    return None if x.numel() else "does not support empty tensors"


def _int_mm_missing(device_type: str) -> str | None:
    return None if device_type == "cpu" else _INT8_UNITS(device_type)


def _dequantize_refuses(x: Tensor, weight: Tensor, scale: Tensor, scheme: str) -> str | None:
    return None if scheme == "int8_weight_only" else f"supports int8_weight_only and not {scheme}"


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, n, k = case.sizes["rows"], case.sizes["n"], case.sizes["k"]
    scheme = tuple(SCHEMES)[case.sizes["scheme"]]
    weight = random_tensor(
        n, k, device=device, dtype=torch.float32, seed=seed + 1, scale=max(k, 1) ** -0.5
    )
    codes, scale = quantize_weight(weight, scheme)
    return {
        "x": random_tensor(rows, k, device=device, dtype=dtype, seed=seed),
        "weight_NK": codes,
        "scale": scale,
        "scheme": scheme,
    }


def _cost(x: Tensor, weight_NK: Tensor, scale: Tensor, scheme: str) -> Cost:
    n, k = weight_NK.shape
    rows = x.numel() // k
    moved = tensor_bytes(x, weight_NK, scale) + rows * n * x.element_size()
    unit = {"int8_dynamic": "int8", "int8_weight_only": ""}.get(scheme, "float8")
    return Cost(Work(moved, 2 * rows * n * k, unit), Work(moved, 2 * rows * n * k))


def _size(rows: int, k: int, n: int, scheme: str) -> dict[str, int]:
    return {"rows": rows, "k": k, "n": n, "scheme": tuple(SCHEMES).index(scheme)}


def _sizes(random: Random) -> dict[str, int]:
    step = random.choice((1, 16))
    sizes = (random.randint(0, 50), step * random.randint(1, 6), step * random.randint(1, 6))
    return _size(*sizes, random.choice(tuple(SCHEMES)))


OP = Operator(
    name="quantized_matmul",
    function=quantized_matmul,
    reference=reference,
    implementations={
        "scaled_mm": Implementation(_by("scaled_mm"), _FP8_UNITS, _scaled_mm_refuses),
        "int_mm": Implementation(_by("int_mm"), _int_mm_missing, _int_mm_refuses),
        "dequantize": Implementation(_by("dequantize"), refuses=_dequantize_refuses),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    gradients=("x",),
    cases=(
        Case("7x63->33 int8 dynamic", _size(7, 63, 33, "int8_dynamic")),
        Case("5x9->3 int8 weight only", _size(5, 9, 3, "int8_weight_only")),
        Case("33x100->63 int8 weight only", _size(33, 100, 63, "int8_weight_only")),
        Case("7x33->5 fp8 tensor", _size(7, 33, 5, "fp8_tensor")),
        Case("9x63->33 fp8 row", _size(9, 63, 33, "fp8_row")),
        Case("1x128->40 int8 dynamic", _size(1, 128, 40, "int8_dynamic")),
        Case("70x1040->80 int8 dynamic", _size(70, 1040, 80, "int8_dynamic")),
        Case("33x96->48 fp8 tensor", _size(33, 96, 48, "fp8_tensor")),
        Case("65x1040->80 fp8 row", _size(65, 1040, 80, "fp8_row")),
        Case("0x32->16 fp8 tensor", _size(0, 32, 16, "fp8_tensor")),
        Case("16384x4096->4096 fp8 tensor", _size(16384, 4096, 4096, "fp8_tensor"), bench=True),
        Case("16384x4096->4096 fp8 row", _size(16384, 4096, 4096, "fp8_row"), bench=True),
        Case("16384x4096->4096 int8", _size(16384, 4096, 4096, "int8_dynamic"), bench=True),
        Case("16x4096->4096 weight only", _size(16, 4096, 4096, "int8_weight_only"), bench=True),
    ),
)
