"""Router of a mixture of experts: chooses k experts for each token, with their weights.

    logits = x weight^T + noise,    p = softmax(logits)
    index = the k highest logits, highest first
    w_j = p[index_j], or p[index_j] / sum over j of p[index_j] if renormalised

Shazeer et al., "Outrageously Large Neural Networks", 2017 (arXiv 1701.06538), section 2.1, with the
softmax before the choice as in Fedus et al., "Switch Transformers", 2021 (arXiv 2101.03961), whose
balancing loss (equations 4 to 6) is computed from the returned statistics: E sum over e of counts_e
/ (tokens k) mean_e. Of equal logits the expert of lower number is chosen. With s_j = p[index_j] and
T = sum of s_j,

    ds_j = dw_j, or (dw_j - sum over i of dw_i w_i) / T if renormalised
    dp = ds at index, plus dmean / tokens,    dlogits = p (dp - sum over e of dp_e p_e)
    dx = dlogits weight,    dweight = dlogits^T x,    dnoise = dlogits.

The caller supplies the noise, if any: Shazeer et al. (equation 4) add a normal number times
softplus(x weight_noise^T) in training, which learns its amplitude through dnoise.

Logits, softmax and results are in FP32 whatever the inputs are, under autocast too.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import absent_as_none, applied, needs_gradient, once_differentiable
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
    alike,
    cdiv,
    random_tensor,
    tensor_bytes,
    unit_stride,
    without_autocast,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    dot_precision,
    missing,
    no_fp64,
    on_device,
    power_of_two,
    rows_of,
)
from kernels.core.tuning import Tile, Tunable, size_class
from kernels.measure import peers
from kernels.moe_gating._kernels import (
    launch_backward,
    launch_forward,
    launch_statistics,
    moe_gating_backward_kernel,
    moe_gating_forward_kernel,
)

MANY = 256  # experts, rounded up, from which on torch multiplies: 78 us, our product 130 (H100)
PIECE = 1024  # columns of x in one sum of torch's product, at most
FEWEST_TERMS, MOST_TERMS = 4, 16  # two of 1,024 columns were off by 1.02 of the allowed error
MAX_EXPERTS = 512  # a program holds the logits of some tokens in registers


def moe_gating(
    x: Tensor,
    weight_EH: Tensor,
    k: int,
    *,
    renormalise: bool = True,
    noise: Tensor | None = None,
    impl: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weights [..., K], experts [..., K] int64, and two statistics of each expert, [E].

    These are the number of tokens that chose it, int64, and the mean over tokens of its
    probability. Weights and means are FP32 and differentiable. ``x`` [..., H] and ``weight_EH``,
    which may have another dtype, get gradients. ``k`` is from 1 to E; ``renormalise``: a token's
    weights sum to 1. ``noise`` [..., E], of any floating dtype, is added to the logits before the
    choice and gets a gradient too. ``impl``: auto, torch or triton. Raises ``Mistake`` if shapes,
    dtypes, devices or k do not fit together.
    """
    return run(OP, impl, x, weight_EH, k, renormalise, noise)


def _check(x: Tensor, weight: Tensor, k: int, renormalise: bool, noise: Tensor | None) -> None:
    alike("moe_gating", "x weight noise", x, weight, noise)
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise Mistake(
            f"moe_gating: expected x [..., H] and weight [E, H], but got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if not 1 <= k <= weight.shape[0]:
        raise Mistake(
            f"moe_gating: k must be from 1 to the number of experts, {weight.shape[0]}, but is {k}"
        )
    if noise is not None and noise.shape != (*x.shape[:-1], weight.shape[0]):
        raise Mistake(
            f"moe_gating: for x {tuple(x.shape)} and weight {tuple(weight.shape)} noise must be "
            f"{(*x.shape[:-1], weight.shape[0])}, but is {tuple(noise.shape)}"
        )


def reference(
    x: Tensor, weight_EH: Tensor, k: int, renormalise: bool = True, noise: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the definition."""
    wide = accumulator(x.dtype)
    n_experts, dim = weight_EH.shape
    with without_autocast(x):
        logits = x.to(wide).reshape(-1, dim) @ weight_EH.to(wide).T
    if noise is not None:
        logits = logits + noise.to(wide).reshape(-1, n_experts)
    p_NE = logits.softmax(-1)
    index = logits.sort(stable=True, dim=-1, descending=True).indices[:, :k]
    weight = p_NE.gather(-1, index)
    if renormalise:
        weight = weight / weight.sum(-1, keepdim=True)
    counts = (index[..., None] == torch.arange(n_experts, device=x.device)).sum((0, 1))
    shape = (*x.shape[:-1], k)
    return weight.view(shape), index.view(shape), counts, p_NE.sum(0) / max(p_NE.shape[0], 1)


def _forward_tiles(
    device: int, block: int, rows: int, x: torch.dtype, weight: torch.dtype, dim: int, *_: Any
) -> list[Tile]:
    """Return tokens per program, columns per step, warps and stages of each tile.

    Columns per step stay fixed: other sums could choose other experts where two are nearly equal.
    With 0 columns per step torch computes the product: one program cannot hold enough tokens beside
    many experts, so that it would read the router's weights too often. ``rows``: the number of
    tokens, 64 if there are more than 32.
    """
    by_torch: list[Tile] = []
    if block >= MANY and rows == 64 and x.itemsize == 2 and x == weight and _terms(dim):
        few = max(1, 2048 // block)
        by_torch = [(few, 0, 4, 1), (2 * few, 0, 4, 1), (few, 0, 8, 1), (max(1, few // 2), 0, 4, 1)]
    block_h = 64 if x.itemsize == 2 and x == weight else 32
    block_h = block_h if block <= 256 else block_h // 2
    rows = max(16, min(rows, 4096 // block))
    warps = 4 if rows * block <= 4096 else 8
    stages = 3 if block <= 64 else 2
    tiles: list[Tile] = [(rows, block_h, warps, stages), (rows, block_h, 12 - warps, stages)]
    tiles += [(rows, block_h, warps, stages + 1), (rows, block_h, warps, stages - 1)]
    if rows > 16:
        tiles += [(rows // 2, block_h, warps, stages), (rows // 2, block_h, 4, stages + 1)]
    return by_torch + tiles


def _backward_tiles(device: int, block: int, *_: Any) -> list[Tile]:
    """Return tokens per program and warps of each tile."""
    rows = max(1, 2048 // block)
    return [(rows, 4), (rows, 2), (rows, 8), (2 * rows, 4), (2 * rows, 8), (max(1, rows // 2), 4)]


_FORWARD = Tunable("moe_gating.forward", (moe_gating_forward_kernel,), _forward_tiles, dots=True)
_BACKWARD = Tunable("moe_gating.backward", (moe_gating_backward_kernel,), _backward_tiles)


def _terms(dim: int) -> int:
    """Return how many equal terms torch's product over ``dim`` columns has; 0 if none fit."""
    fewest = max(FEWEST_TERMS, cdiv(dim, PIECE))
    return next((n for n in range(fewest, MOST_TERMS + 1) if dim % (8 * n) == 0), 0)


def _partial_logits(x: Tensor, matrix: Tensor, n_rows: int) -> Tensor:
    """Return the logits by torch, as FP32 terms [pieces, tokens, E] that are still to be added.

    Matrix units truncate as they accumulate, so each term sums few columns.
    """
    n_experts, dim = matrix.shape
    pieces = _terms(dim)
    x_PNC = x.reshape(n_rows, pieces, dim // pieces).transpose(0, 1)
    weight_PCE = matrix.reshape(n_experts, pieces, dim // pieces).permute(1, 2, 0)
    with without_autocast(x):
        if not x.is_cuda:  # the interpreter's tensors, for which torch has no wider result
            return x_PNC.float() @ weight_PCE.float()
        return torch.bmm(x_PNC, weight_PCE, out_dtype=torch.float32)


@replayed
def _forward(
    x: Tensor, weight_EH: Tensor, k: int, renormalise: bool, noise: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Return weights, experts, the two statistics and, with ``keep``, all probabilities."""
    matrix = unit_stride(weight_EH)
    n_experts, dim = matrix.shape
    n_rows = x.numel() // dim
    shape = (*x.shape[:-1], k)
    make = {"dtype": torch.float32, "device": x.device}
    weight = torch.empty(*shape, **make)
    index = torch.empty(*shape, dtype=torch.int64, device=x.device)
    p_NE = torch.empty(n_rows, n_experts, **make) if keep else None
    mixed = x.dtype != matrix.dtype
    precision, block = dot_precision(mixed), max(16, power_of_two(n_experts))
    rows, block_h, warps, stages = _FORWARD.tile(
        (
            x.get_device(), block, 64 if n_rows > 32 else power_of_two(n_rows), x.dtype,
            matrix.dtype, dim, k, size_class(n_rows),
        ),
        _forward, x, weight_EH, k, renormalise, noise, keep,
    )  # fmt: skip
    programs = cdiv(n_rows, rows)
    share, mean = torch.empty(2, programs, n_experts, **make), torch.empty(n_experts, **make)
    total = torch.empty(n_experts, dtype=torch.int64, device=x.device)
    x, x_stride = rows_of(x)
    pieces = 0
    if not block_h:
        x = _partial_logits(x, matrix, n_rows)
        pieces, block_h = len(x), 16
    with on_device(x):
        launch_forward((programs,),
            x, matrix, noise, weight, index, p_NE, share,
            n_rows, x_stride, matrix.stride(0),
            H=dim, E=n_experts, K=k, RENORMALISE=renormalise, NOISY=noise is not None,
            KEEP=keep, WIDE=mixed, PIECES=pieces, ROWS=rows, BLOCK_H=block_h, BLOCK_E=block,
            BLOCK_K=power_of_two(k), PRECISION=precision, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        launch_statistics(
            (cdiv(n_experts, 8),),
            share,
            mean,
            total,
            programs,
            n_rows,
            E=n_experts,
            ROWS=256,
            BLOCK=8,
        )
    return weight, index, total, mean, p_NE


@replayed
def _logits_gradient(
    p_NE: Tensor,
    weight: Tensor,
    index: Tensor,
    dweight: Tensor,
    dmean: Tensor,
    renormalise: bool,
    dtype: torch.dtype,
) -> Tensor:
    n_rows, n_experts = p_NE.shape
    dlogits = torch.empty(n_rows, n_experts, dtype=dtype, device=p_NE.device)
    block = max(16, power_of_two(n_experts))
    key = (p_NE.get_device(), block, weight.shape[-1], dtype, size_class(n_rows))
    rows, warps = _BACKWARD.tile(
        key, _logits_gradient, p_NE, weight, index, dweight, dmean, renormalise, dtype
    )
    with on_device(p_NE):
        launch_backward(
            (cdiv(n_rows, rows),),
            p_NE,
            weight,
            index,
            dweight,
            dmean,
            dlogits,
            n_rows,
            E=n_experts,
            K=weight.shape[-1],
            RENORMALISE=renormalise,
            ROWS=rows,
            BLOCK_E=block,
            num_warps=warps,
        )
    return dlogits


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_EH: Tensor,
        k: int,
        renormalise: bool,
        noise: Tensor | None,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        noise = noise if noise is None else noise.contiguous()
        weight, index, total, mean, p_NE = _forward(x, weight_EH, k, renormalise, noise, keep)
        ctx.save_for_backward(x, weight_EH, p_NE, weight, index)
        ctx.renormalise = renormalise
        ctx.noise_like = None if noise is None else (noise.shape, noise.dtype)
        ctx.mark_non_differentiable(index, total)
        absent_as_none(ctx)
        return weight, index, total, mean

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dweight: Tensor | None, dindex: Any, dtotal: Any, dmean: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, weight_EH, p_NE, weight, index = ctx.saved_tensors
        n_rows, n_experts = p_NE.shape
        dweight = torch.zeros_like(weight) if dweight is None else dweight.contiguous()
        dmean = p_NE.new_zeros(n_experts) if dmean is None else dmean.contiguous()
        # FP16 has too small a range for a gradient of this size before it is scaled.
        need_noise = ctx.needs_input_grad[4]
        narrow = x.dtype == weight_EH.dtype == torch.bfloat16 and not need_noise
        dtype = torch.bfloat16 if narrow else torch.float32
        dlogits = _logits_gradient(p_NE, weight, index, dweight, dmean, ctx.renormalise, dtype)
        with without_autocast(x):
            dx = (dlogits @ _cast(weight_EH, dtype)).view(x.shape)
            x_NH = _cast(x.reshape(n_rows, x.shape[-1]), dtype)
            dweight_EH = _cast(dlogits.T @ x_NH, weight_EH.dtype)
        dnoise = None
        if need_noise:
            shape, noise_dtype = ctx.noise_like
            dnoise = dlogits.view(shape).to(noise_dtype)
        return _cast(dx, x.dtype), dweight_EH, None, None, dnoise, None


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    # ``to`` takes a microsecond even if the dtype is the same
    return x if x.dtype == dtype else x.to(dtype)


def _triton(
    x: Tensor, weight_EH: Tensor, k: int, renormalise: bool, noise: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    keep = needs_gradient(x, weight_EH, noise)
    return applied(_Gate, x, weight_EH, k, renormalise, noise, keep)


def _refuses(
    x: Tensor, weight_EH: Tensor, k: int, renormalise: bool, noise: Tensor | None = None
) -> str | None:
    if weight_EH.shape[0] > MAX_EXPERTS:
        return f"supports up to {MAX_EXPERTS} experts, not {weight_EH.shape[0]}"
    if not x.numel():
        return "does not support empty tensors"
    return no_fp64(x) or no_fp64(weight_EH) or (None if noise is None else no_fp64(noise))


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, dim, experts, k = (case.sizes[n] for n in ("rows", "dim", "experts", "k"))
    wide = torch.float32 if case.sizes.get("wide") else dtype
    make = {"device": device, "dtype": wide}
    weight = random_tensor(experts, dim, seed=seed + 1, scale=2 * dim**-0.5, **make)
    x = random_tensor(rows, dim, device=device, dtype=dtype, seed=seed)
    noise = None
    if case.sizes.get("noisy"):
        noise = random_tensor(rows, experts, device=device, dtype=torch.float32, seed=seed + 2)
    # Tokens whose choice could depend on rounding are drawn again.
    close = torch.arange(rows, device=device)
    for attempt in range(1, 100):
        logits = x[close].double() @ weight.double().T
        logits += 0 if noise is None else noise[close].double()
        ranked = logits.sort(-1, descending=True).values[:, : k + 1]
        close = close[((ranked[:, :-1] - ranked[:, 1:]) < 2e-3).any(-1)]
        if not len(close):
            break
        again = {"device": device, "dtype": dtype, "seed": seed + 1000 * attempt}
        x[close] = random_tensor(len(close), dim, **again)
    return {
        "x": x,
        "weight_EH": weight,
        "k": k,
        "renormalise": case.sizes.get("renormalise", True),
        "noise": noise,
    }


def _cost(
    x: Tensor, weight_EH: Tensor, k: int, renormalise: bool, noise: Tensor | None = None
) -> Cost:
    n_experts, dim = weight_EH.shape
    n_rows = x.numel() // max(dim, 1)
    inputs, chosen = tensor_bytes(x, weight_EH, noise), n_rows * k
    product = 2 * x.numel() * n_experts
    return Cost(
        Work(inputs + 12 * chosen + 12 * n_experts, product),
        Work(2 * inputs + 12 * chosen + 4 * n_experts, 2 * product),
    )


def _sizes(random: Random) -> dict[str, Any]:
    # With two experts the errors of the means are alike, and their difference is one number's
    # chance.
    experts = random.choice((1, random.randint(4, 40), random.randint(4, 40)))
    return {
        "rows": random.randint(1, 70),
        "dim": random.randint(1, 200),
        "experts": experts,
        "k": random.randint(1, min(experts, 6)),
        "renormalise": random.random() < 0.5,
        "wide": random.random() < 0.3,
        "noisy": random.random() < 0.3,
    }


OP = Operator(
    name="moe_gating",
    function=moe_gating,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
        **peers.options("moe_gating"),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(Huge({"rows": (1 << 21) + 3, "dim": 1024, "experts": 8, "k": 2, "noisy": True}),),
    gradients=("x", "weight_EH", "noise"),
    cases=(
        Case("63x100 E20 k3", {"rows": 63, "dim": 100, "experts": 20, "k": 3}),
        Case("1x1 E1 k1", {"rows": 1, "dim": 1, "experts": 1, "k": 1}),
        Case(
            "130x33 E5 k5 not renormalised",
            {"rows": 130, "dim": 33, "experts": 5, "k": 5, "renormalise": False},
        ),
        Case(
            "17x300 E100 k7 wide router",
            {"rows": 17, "dim": 300, "experts": 100, "k": 7, "wide": True},
        ),
        Case("37x50 E9 k2 noisy", {"rows": 37, "dim": 50, "experts": 9, "k": 2, "noisy": True}),
        Case("40x48 E130 k4", {"rows": 40, "dim": 48, "experts": 130, "k": 4}),
        Case("9x12 E2 k1", {"rows": 9, "dim": 12, "experts": 2, "k": 1}),
        Case("0x8 E4 k2", {"rows": 0, "dim": 8, "experts": 4, "k": 2}),
        Case("16384x2048 E64 k8", {"rows": 16384, "dim": 2048, "experts": 64, "k": 8}, bench=True),
    ),
)
