"""Cross entropy of a linear map's logits, without ever holding all logits.

    logits = x weight^T,    loss = mean or sum over tokens of (logsumexp(logits) - logits[target])

The idea of Wijmans et al., "Cut Your Losses", 2024 (arXiv 2411.09009) and of Liger-Kernel (Hsu et
al. 2024, arXiv 2410.10989, section 3.2), which this follows: tokens are processed in chunks; a
chunk's logits become, in place, their own gradient softmax(logits) - onehot(target). From it

    dx = dlogits weight,    dweight = sum over chunks of dlogits^T x

are computed in the forward pass, while it is available, for a gradient of 1 of the loss. The
backward pass multiplies them by another gradient in their own memory; a second one over the same
graph computes them again. A token's weight in a mean is a factor of dlogits, except in FP16, whose
smallest numbers would become 0. The softmax is in FP32, the products in the inputs' dtype.

``chunked`` is the same in plain torch. ``triton`` is fast: a chunk has up to 2 GiB of logits.
``triton_small`` takes about as much memory as Liger: a chunk's logits are about as large as all of
x. With 8,192 tokens, width 4096 and 128,256 words, both take 1,183 MB beyond the inputs.

Rows of logits begin at multiples of ``ALIGNMENT`` numbers, and products have such multiples of
words: cuBLAS is slow for other sizes, and GPT-2 has 50,257 words and BERT 30,522. The last words
have a product of their own, with zeros after them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied, needs_gradient, once_differentiable
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
    autocast_dtype,
    cdiv,
    random_tensor,
    same_device,
    tensor_bytes,
    without_autocast,
)
from kernels.core.triton_helpers import missing, no_fp64, on_device, power_of_two
from kernels.linear_cross_entropy._kernels import (
    rows_by_triton,
    scale_by_triton,
    share_by_triton,
    total_by_triton,
)
from kernels.measure import peers

CHUNK_BYTES = 2 << 30  # logits per chunk: each reads and writes the weights' gradient once more
FEWEST = 64  # tokens of a small chunk: fewer waste the matrix units
ALIGNMENT = 64  # numbers; 128 bytes in 16 bits, a line of the cache
REDUCTIONS = ("mean", "sum")


def linear_cross_entropy(
    x: Tensor,
    weight_VD: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    impl: str | None = None,
) -> Tensor:
    """Compute the loss, an FP32 scalar.

    ``x`` [..., D] and ``weight_VD`` of one dtype, ``target`` [...] int64 with values in [0, V) or
    ``ignore_index``, whose tokens do not count. ``reduction``: "mean" over the tokens that count
    (NaN if there are none, as in torch) or "sum". Under autocast the product is in its dtype.
    ``impl``: auto, triton, triton_small, chunked, torch, or a library. Raises ``Mistake`` if the
    arguments do not fit together; a target out of range is not checked, since that would wait for
    the GPU. Such a target makes loss and gradients of the Triton kernels NaN; torch's own kernels
    stop at it, and the process cannot use the GPU any more.
    """
    dtype = autocast_dtype(x)
    if dtype is not None:
        _check_shapes(x, weight_VD, target, reduction)
        x, weight_VD = x.to(dtype), weight_VD.to(dtype)
    return run(OP, impl, x, weight_VD, target, ignore_index, reduction)


def _check(x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str) -> None:
    _check_shapes(x, weight, target, reduction)
    if x.dtype != weight.dtype:
        raise Mistake(
            f"linear_cross_entropy: x and weight must have one dtype, but have {x.dtype} and "
            f"{weight.dtype}"
        )


def _check_shapes(x: Tensor, weight: Tensor, target: Tensor, reduction: str) -> None:
    alike("linear_cross_entropy", "x weight", x, weight)
    same_device("linear_cross_entropy", x, target=target)
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise Mistake(
            f"linear_cross_entropy: expected x [..., D] and weight [V, D], but got "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if target.shape != x.shape[:-1] or target.dtype != torch.int64:
        raise Mistake(
            f"linear_cross_entropy: target must be int64 {tuple(x.shape[:-1])}, but is "
            f"{target.dtype} {tuple(target.shape)}"
        )
    if reduction not in REDUCTIONS:
        raise Mistake(
            f"linear_cross_entropy: reduction must be one of {REDUCTIONS}, not {reduction!r}"
        )


def reference(
    x: Tensor,
    weight_VD: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Compute the definition, with all logits."""
    logits = (x @ weight_VD.T).to(accumulator(x.dtype))
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, weight_VD.shape[0]),
        target.reshape(-1),
        ignore_index=ignore_index,
        reduction=reduction,
    )


def _rows_torch(
    aligned: Tensor,
    n_words: int,
    target_N: Tensor,
    losses_N: Tensor,
    share: Tensor | None,
    ignore_index: int,
    gradient: bool,
) -> None:
    logits = aligned[:, :n_words]
    aligned[:, n_words:] = 0
    counts_N1 = (target_N != ignore_index)[:, None]
    hit_N1 = torch.where(counts_N1, target_N[:, None], 0)
    logs = logits.to(losses_N.dtype).log_softmax(-1)
    hit_logs_N1 = logs.gather(1, hit_N1)
    losses_N.copy_(torch.where(counts_N1, -hit_logs_N1, 0).squeeze(1))
    if gradient:
        slopes = logs.exp_().scatter_add_(1, hit_N1, -torch.ones_like(hit_logs_N1))
        if share is not None:
            slopes *= share
        logits.copy_(slopes.masked_fill_(~counts_N1, 0))


def _share_torch(target_N: Tensor, ignore_index: int, dtype: torch.dtype) -> Tensor:
    return 1 / (target_N != ignore_index).sum(dtype=dtype)


def _total_torch(losses_N: Tensor, share: Tensor | None) -> Tensor:
    loss = losses_N.sum()
    return loss if share is None else loss * share


def _factor(dloss: Tensor, share: Tensor | None) -> Tensor:
    # Without tokens the mean is NaN and the gradients are zeros, as in torch.
    return dloss if share is None else dloss * share.nan_to_num(posinf=0.0)


def _scale_torch(x: Tensor, dloss: Tensor, share: Tensor | None) -> Tensor:
    return x.mul_(_factor(dloss, share).to(x.dtype))


Chunk = Callable[[int, int, int, int], int]


def _row_length(n_words: int) -> int:
    """Return the distance of two rows of logits."""
    return ALIGNMENT * cdiv(n_words, ALIGNMENT)


def _aligned_parts(weight: Tensor) -> list[tuple[slice, Tensor]]:
    """Return the columns of logits that are multiplied together, and their weights.

    The small part is first, so that the sum of both products is rounded only once at its size. The
    compiler gets one part, with a copy of the weights; it makes such copies itself.
    """
    n_words = weight.shape[0]
    width = _row_length(n_words)
    if width == n_words:
        return [(slice(0, width), weight)]
    begin = 0 if torch.compiler.is_compiling() else width - ALIGNMENT
    last = torch.nn.functional.pad(weight[begin:], (0, 0, 0, width - n_words))
    parts = [(slice(begin, width), last)]
    return parts if begin == 0 else [*parts, (slice(0, begin), weight[:begin])]


def _aligned_logits(x_CD: Tensor, parts: list[tuple[slice, Tensor]], width: int) -> Tensor:
    """Return the logits [C, W]; those after the last word do not count."""
    if len(parts) == 1:
        return torch.nn.functional.linear(x_CD, parts[0][1])
    aligned = x_CD.new_empty(x_CD.shape[0], width)
    for columns, words in parts:
        torch.mm(x_CD, words.T, out=aligned[:, columns])
    return aligned


def _multiplied(out: Tensor | None, a: Tensor, b: Tensor, add: bool) -> Tensor:
    """Return ``a b``: in ``out`` if there is one, and with ``add`` added to it."""
    if out is None:
        return a @ b
    if add:
        return out.addmm_(a, b)
    if torch.compiler.is_compiling():
        return out.copy_(a @ b)
    return torch.mm(a, b, out=out)


def _fast_chunk(n_rows: int, dim: int, n_words: int, element: int) -> int:
    return max(1, CHUNK_BYTES // (_row_length(n_words) * element))


def _small_chunk(n_rows: int, dim: int, n_words: int, element: int) -> int:
    """Return the tokens of a chunk as Liger counts them (section 3.2)."""
    tokens = power_of_two(cdiv(n_rows, cdiv(n_words, dim)))
    return min(_fast_chunk(n_rows, dim, n_words, element), max(FEWEST, tokens))


def loss_memory(impl: str, *, n_rows: int, dim: int, n_words: int, element: int) -> int:
    """Return the peak bytes of the loss besides its inputs: a chunk's logits, and gradients.

    ``element``: bytes of an input's number. Libraries are assumed to choose chunks like Liger's.
    """
    chunk_of = _fast_chunk if impl in ("triton", "chunked") else _small_chunk
    chunk = chunk_of(n_rows, dim, n_words, element)
    logits = min(chunk, n_rows) * _row_length(n_words)
    # Plain torch copies logits that are not FP32, and writes the softmax elsewhere.
    rows = logits * 4 * (2 if element < 4 else 1) if impl == "chunked" else 0
    gradients = (n_rows + _row_length(n_words)) * dim * element
    # The first chunk computes its gradients after its softmax.
    return logits * element + (rows + gradients if n_rows > chunk else max(rows, gradients))


@dataclass(frozen=True)
class _Way:
    """Functions that compute the loss in one way.

    ``rows`` computes each token's loss and, in the logits' memory, their gradient. ``share``
    returns a token's weight in the mean, ``total`` adds the losses up, and ``scale`` multiplies
    gradients in place. ``chunk`` returns how many tokens a chunk has, for the numbers of tokens,
    columns and words, and the bytes of a number.
    """

    chunk: Chunk
    rows: Callable[..., None] = rows_by_triton
    share: Callable[..., Tensor] = share_by_triton
    total: Callable[..., Tensor] = total_by_triton
    scale: Callable[..., Tensor] = scale_by_triton


def _compute(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int,
    mean: bool,
    x_grad: bool,
    weight_grad: bool,
    way: _Way,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the loss, its gradients, and a factor that they do not have yet, or None."""
    n_rows, (n_words, dim) = target.numel(), weight.shape
    x_ND = x if x.dim() == 2 else x.reshape(n_rows, dim)
    target_N = (target if target.dim() == 1 else target.reshape(n_rows)).contiguous()
    losses = torch.empty(n_rows, dtype=accumulator(x.dtype), device=x.device)
    chunk = way.chunk(n_rows, dim, n_words, x.element_size())
    width, parts = _row_length(n_words), _aligned_parts(weight)
    dx = dweight = None
    gradient = x_grad or weight_grad
    if x_grad and n_rows > chunk:
        dx = torch.empty(n_rows, dim, dtype=x.dtype, device=x.device)
    with on_device(x), without_autocast(x):
        share = way.share(target_N, ignore_index, losses.dtype) if mean else None
        later = share if x.dtype == torch.float16 else None
        now = None if later is share else share
        for start in range(0, n_rows, chunk):
            x_CD, target_C, losses_C, dx_CD = x_ND, target_N, losses, dx
            if n_rows > chunk:
                part = slice(start, start + chunk)
                x_CD, target_C, losses_C = x_ND[part], target_N[part], losses[part]
                dx_CD = None if dx is None else dx[part]
            aligned = _aligned_logits(x_CD, parts, width)
            way.rows(aligned, n_words, target_C, losses_C, now, ignore_index, gradient)
            if weight_grad and len(parts) > 1 and dweight is None:
                dweight = x_CD.new_empty(width, dim)
            for columns, words in parts if gradient else ():
                slopes = aligned[:, columns]
                if x_grad:
                    dx_CD = _multiplied(dx_CD, slopes, words, add=words is not parts[0][1])
                if weight_grad:
                    rows = None if dweight is None else dweight[columns]
                    rows = _multiplied(rows, slopes.T, x_CD, add=start > 0)
                    dweight = rows if dweight is None else dweight
                del slopes
            dx = dx_CD if dx is None else dx
            del aligned  # before the next chunk's are made
        loss = way.total(losses, share)
    return loss, dx, None if dweight is None else dweight[:n_words], later


class _LinearCrossEntropy(torch.autograd.Function):
    """Autograd function of the loss; arguments as in ``_compute``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, *call: Any) -> Tensor:
        loss, *gradients = _compute(x, weight, target, *call)
        ctx.shape = x.shape
        if torch.compiler.is_compiling():
            ctx.save_for_backward(*gradients)
        else:
            ctx.save_for_backward(x, weight, target)
            ctx.call, ctx.gradients = call, gradients
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        if torch.compiler.is_compiling():
            dx, dweight, share = ctx.saved_tensors
            factor = _factor(dloss, share)
            dx = None if dx is None else dx * factor.to(dx.dtype)
            dweight = None if dweight is None else dweight * factor.to(dweight.dtype)
        else:
            *gradients, share = _unscaled_gradients(ctx)
            scale = ctx.call[-1].scale
            with on_device(dloss):
                dx, dweight = (None if g is None else scale(g, dloss, share) for g in gradients)
        return None if dx is None else dx.view(ctx.shape), dweight, *(None,) * 6


def _unscaled_gradients(ctx: Any) -> Any:
    """Return the gradients of the forward pass, which the caller owns from then on."""
    gradients = ctx.gradients
    if gradients:
        taken = [*gradients]
        gradients.clear()  # in place: what autograd passes as ctx may be a wrapper
        return taken
    x, weight, target = ctx.saved_tensors
    return _compute(x, weight, target, *ctx.call)[1:]


def _by(way: _Way) -> Callable[..., Tensor]:
    def call(
        x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str
    ) -> Tensor:
        return applied(
            _LinearCrossEntropy,
            x,
            weight,
            target,
            ignore_index,
            reduction == "mean",
            needs_gradient(x),
            needs_gradient(weight),
            way,
        )

    return call


def _empty(x: Tensor, weight: Tensor, *_: Any) -> str | None:
    return None if x.numel() and weight.numel() else "does not support empty tensors"


def _refuses(x: Tensor, weight: Tensor, *_: Any) -> str | None:
    return _empty(x, weight) or no_fp64(x)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, dim, words = (case.sizes[n] for n in ("rows", "dim", "words"))
    generator = torch.Generator("cpu").manual_seed(seed + 2)
    target = torch.randint(words, (rows,), generator=generator)
    target[: rows - case.sizes.get("counted", rows - rows // 5)] = -100
    make = {"device": device, "dtype": dtype}
    return {
        "x": random_tensor(rows, dim, seed=seed, **make),
        "weight_VD": random_tensor(words, dim, seed=seed + 1, scale=2 * dim**-0.5, **make),
        "target": target.to(device),
        "ignore_index": -100,
        "reduction": case.sizes.get("reduction", "mean"),
    }


def _cost(x: Tensor, weight_VD: Tensor, target: Tensor, **_: Any) -> Cost:
    read = tensor_bytes(x, weight_VD)
    product = 2 * x.numel() * weight_VD.shape[0]
    return Cost(Work(read + tensor_bytes(target), product), Work(2 * read, 2 * product))


def _sizes(random: Random) -> dict[str, Any]:
    return {
        "rows": random.randint(1, 30),
        "dim": random.randint(1, 60),
        "words": random.randint(2, 300),
        "reduction": random.choice(REDUCTIONS),
    }


OP = Operator(
    name="linear_cross_entropy",
    gradients_in_forward=True,
    function=linear_cross_entropy,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(
            _by(_Way(_fast_chunk)),
            missing,
            _refuses,
            replayed=True,
        ),
        "triton_small": Implementation(_by(_Way(_small_chunk)), missing, _refuses),
        "chunked": Implementation(
            _by(_Way(_fast_chunk, _rows_torch, _share_torch, _total_torch, _scale_torch)),
            refuses=_empty,
        ),
        "torch": Implementation(reference),
        **peers.options("linear_cross_entropy"),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    # The loss is one number for all tokens: only the last two count.
    huge=(
        Huge(
            {
                "rows": (1 << 21) + 3,
                "dim": 1024,
                "words": 100,
                "counted": 2,
                "reduction": "sum",
            }
        ),
    ),
    gradients=("x", "weight_VD"),
    cases=(
        Case("63x100 V1024", {"rows": 63, "dim": 100, "words": 1024}),
        Case("63x100 V1000", {"rows": 63, "dim": 100, "words": 1000}),
        Case("1x8 V2", {"rows": 1, "dim": 8, "words": 2}),
        Case("7x64 V70001 sum", {"rows": 7, "dim": 64, "words": 70001, "reduction": "sum"}),
        Case("16384x2560 V50304", {"rows": 16384, "dim": 2560, "words": 50304}, bench=True),
        Case("8192x768 V50304", {"rows": 8192, "dim": 768, "words": 50304}, bench=True),
    ),
)
