"""Choose the k tokens of every sequence with the highest scores, and gather them in order.

    index_b = sort(the k positions with the highest score_b),    tokens_b = x_b[index_b]

The expert choice of mixture of depths (Raposo et al. 2024, arXiv 2404.02258, section 3.3) and of
mixture of recursions (Bae et al. 2025, arXiv 2507.10524, section 2.2); ``token_scatter`` writes the
results back. Of equal scores the earlier position is chosen; NaN counts as the highest. The
gradients go back to the chosen positions and are zero elsewhere.

Nothing is sorted: a search over the bits of the scores finds the k-th highest, and a running count
of the chosen tokens gives each one's index in the result.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import absent_as_none, applied, needs_gradient, once_differentiable
from kernels.core.dispatch import run
from kernels.core.launch import launcher
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    alike,
    cdiv,
    random_tensor,
    tensor_bytes,
    unit_stride,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import missing, no_fp64, on_device, power_of_two, tl, triton
from kernels.core.tuning import Tile, Tunable, size_class

MAX_LENGTH = 65536  # the scores of one sequence are held in the registers of one program


def token_router(
    x_BSD: Tensor, score_BS: Tensor, k: int, *, impl: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the chosen tokens [B, K, D], their scores [B, K] and their positions [B, K] int64.

    ``x_BSD`` and ``score_BS`` may have different floating dtypes, which the results keep; both get
    gradients. Positions ascend within a sequence. ``k`` is from 1 to S. ``impl``: auto, torch or
    triton. Raises ``Mistake`` if shapes, dtypes, devices or k do not fit together.
    """
    return run(OP, impl, x_BSD, score_BS, k)


def _check(x: Tensor, score: Tensor, k: int) -> None:
    alike("token_router", "x score", x, score)
    if x.dim() != 3 or score.shape != x.shape[:2]:
        raise Mistake(
            f"token_router: expected x [B, S, D] and score [B, S], but got {tuple(x.shape)} "
            f"and {tuple(score.shape)}"
        )
    if not 1 <= k <= x.shape[1]:
        raise Mistake(
            f"token_router: k must be from 1 to the length of a sequence, {x.shape[1]}, but is {k}"
        )


def reference(x_BSD: Tensor, score_BS: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the definition."""
    order = score_BS.sort(stable=True, dim=-1, descending=True).indices
    index = order[:, :k].sort(-1).values
    tokens = x_BSD.gather(1, index[..., None].expand(-1, -1, x_BSD.shape[2]))
    return tokens, score_BS.gather(1, index), index


@triton.jit
def _token_router_select_kernel(
    score_ptr,
    index_ptr,
    chosen_ptr,
    slot_ptr,
    length,
    score_batch,
    score_token,
    K: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Process one sequence: positions and scores of the chosen, and every position's slot."""
    i_b = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, BLOCK)
    m_s = o_s < length
    p_score = score_ptr + i_b * score_batch + o_s.to(tl.int64) * score_token
    b_score = tl.load(p_score, mask=m_s, other=0.0)
    b_bits = tl.where(b_score == 0, 0.0, b_score).to(tl.int32, bitcast=True)  # no minus zero
    # Integers in the order of the floats: the magnitude of negative ones is inverted.
    b_key = b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)
    b_key = tl.where(b_score != b_score, 0x7FFFFFFF, b_key)
    b_key = tl.where(m_s, b_key, -0x80000000)
    # The K-th key is the largest bound that at least K keys reach; found from its highest bit on.
    count = tl.sum((b_key >= 0).to(tl.int32), axis=0)
    bound = tl.where(count >= K, 0, -0x80000000)
    for step in range(31):
        higher = bound + (1 << (30 - step))
        count = tl.sum((b_key >= higher).to(tl.int32), axis=0)
        bound = tl.where(count >= K, higher, bound)
    above = (b_key > bound).to(tl.int32)
    equal = ((b_key == bound) & m_s).to(tl.int32)
    left = K - tl.sum(above, axis=0)
    chosen = above + equal * (tl.cumsum(equal, axis=0) <= left).to(tl.int32)
    b_slot = tl.cumsum(chosen, axis=0) - 1
    m = chosen > 0
    tl.store(index_ptr + i_b * K + b_slot, o_s.to(tl.int64), mask=m)
    tl.store(chosen_ptr + i_b * K + b_slot, b_score, mask=m)
    if KEEP:
        tl.store(slot_ptr + i_b * length + o_s, tl.where(m, b_slot, -1), mask=m_s)


_launch_select = launcher(_token_router_select_kernel)


@triton.jit
def _token_router_pull_kernel(
    source_ptr,
    place_ptr,
    weight_ptr,
    base_ptr,
    out_ptr,
    n_rows,
    length,
    places,
    source_batch,
    source_row,
    base_batch,
    base_row,
    D: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BASED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gather ``out`` [B, length, D]: row i is the source's row ``place[i]``, or zeros for -1.

    ``WEIGHTED``: times the weight [B, places] of that row; ``BASED``: plus row i of the base.
    """
    o_n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_n, m_d = o_n < n_rows, o_d < D
    b_place = tl.load(place_ptr + o_n, mask=m_n, other=-1).to(tl.int64)
    i_b = o_n // length
    m_place = b_place >= 0
    p_source = source_ptr + (i_b * source_batch + b_place * source_row)[:, None] + o_d[None, :]
    b_x = tl.load(p_source, mask=m_place[:, None] & m_d[None, :], other=0.0).to(tl.float32)
    if WEIGHTED:
        b_w = tl.load(weight_ptr + i_b * places + b_place, mask=m_place, other=0.0)
        b_x *= b_w.to(tl.float32)[:, None]
    m = m_n[:, None] & m_d[None, :]
    if BASED:
        p_base = base_ptr + (i_b * base_batch + (o_n % length) * base_row)[:, None] + o_d[None, :]
        b_x += tl.load(p_base, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + o_n[:, None] * D + o_d[None, :], b_x, mask=m)


_launch_pull = launcher(_token_router_pull_kernel)


def row_tiles(device: int, dim: int, *_: Any) -> list[Tile]:
    """Return rows, columns and warps of the tiles that one program moves."""
    block = min(1024, power_of_two(dim))
    rows = max(1, min(16, 4096 // block))
    half = max(1, rows // 2)
    return [
        (rows, block, 4),
        (rows, block, 8),
        (rows, block, 2),
        (half, block, 4),
        (half, block, 2),
    ]


_PULL = Tunable("token_router.pull", (_token_router_pull_kernel,), row_tiles)


@replayed
def pull(
    source: Tensor, row_index: Tensor, weight: Tensor | None = None, base: Tensor | None = None
) -> Tensor:
    """Gather with Triton the row ``row_index`` [B, T] of ``source`` [B, N, D]; zeros for -1.

    Times its ``weight`` [B, N] if given, plus ``base`` [B, T, D] if given, which decides the dtype.
    """
    batch, length = row_index.shape
    dim = source.shape[2]
    source = unit_stride(source)
    base = base if base is None else unit_stride(base)
    dtype = source.dtype if base is None else base.dtype
    out = torch.empty(batch, length, dim, dtype=dtype, device=source.device)
    key = (source.get_device(), dim, dtype, base is not None, size_class(batch * length))
    rows, block, warps = _PULL.tile(key, pull, source, row_index, weight, base)
    with on_device(source):
        _launch_pull(
            (cdiv(batch * length, rows), cdiv(dim, block)),
            source,
            row_index.contiguous(),
            weight if weight is None else weight.contiguous(),
            base,
            out,
            batch * length,
            length,
            source.shape[1],
            *source.stride()[:2],
            *((0, 0) if base is None else base.stride()[:2]),
            D=dim,
            WEIGHTED=weight is not None,
            BASED=base is not None,
            ROWS=rows,
            BLOCK_D=block,
            num_warps=warps,
        )
    return out


@replayed
def _forward(
    x: Tensor, score: Tensor, k: int, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the results and, with ``keep``, each position's index among the chosen, or -1."""
    batch, length = score.shape
    index = torch.empty(batch, k, dtype=torch.int64, device=x.device)
    chosen = torch.empty(batch, k, dtype=score.dtype, device=x.device)
    slot = None
    if keep:
        slot = torch.empty(batch, length, dtype=torch.int32, device=x.device)
    block = power_of_two(length)
    wide = score.float()  # in half precision the kernel would need twice the shared memory
    with on_device(x):
        _launch_select(
            (batch,),
            wide,
            index,
            chosen,
            slot,
            length,
            *wide.stride(),
            K=k,
            KEEP=keep,
            BLOCK=block,
            num_warps=max(4, min(32, block // 256)),
        )
    return pull(x, index), chosen, index, slot


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, score: Tensor, k: int, keep: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, chosen, index, slot = _forward(x, score, k, keep)
        ctx.save_for_backward(slot, index)
        ctx.mark_non_differentiable(index)
        absent_as_none(ctx)
        ctx.sizes = x.shape, x.dtype, score.dtype
        return tokens, chosen, index

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dtokens: Tensor | None, dchosen: Tensor | None, dindex: Any
    ) -> tuple[Tensor | None, ...]:
        slot, index = ctx.saved_tensors
        shape, dtype, score_dtype = ctx.sizes
        dscore = torch.zeros_like(slot, dtype=score_dtype)
        if dchosen is not None:
            dscore.scatter_(1, index, dchosen)
        if dtokens is None:
            return torch.zeros(shape, dtype=dtype, device=slot.device), dscore, None, None
        return pull(dtokens, slot), dscore, None, None


def _triton(x: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    return applied(_Route, x, score, k, needs_gradient(x, score))


def _refuses(x: Tensor, score: Tensor, k: int) -> str | None:
    if score.shape[1] > MAX_LENGTH:
        return f"supports sequences of up to {MAX_LENGTH} tokens, not {score.shape[1]}"
    if not x.numel():
        return "does not support empty tensors"
    return no_fp64(x) or no_fp64(score)


def shuffled_scores(batch: int, length: int, seed: int, device: torch.device) -> Tensor:
    """Draw FP32 scores from -2 to 2 in random order, distinct in FP16 if there are few."""
    generator = torch.Generator("cpu").manual_seed(seed)
    ranks = torch.rand(batch, length, generator=generator).argsort(-1)
    return (4 * (ranks + 0.5) / length - 2).to(device)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    batch, length, dim, k = (case.sizes[n] for n in ("batch", "length", "dim", "k"))
    score = shuffled_scores(batch, length, seed + 1, device)
    if case.sizes.get("ties"):
        score = score.round()
    return {
        "x_BSD": random_tensor(batch, length, dim, device=device, dtype=dtype, seed=seed),
        "score_BS": score.to(torch.float32 if case.sizes.get("wide") else dtype),
        "k": k,
    }


def _cost(x_BSD: Tensor, score_BS: Tensor, k: int) -> Cost:
    x, scores = tensor_bytes(x_BSD), tensor_bytes(score_BS)
    taken = (x + scores) * k // max(x_BSD.shape[1], 1)
    places = 8 * score_BS.shape[0] * k
    return Cost(
        Work(2 * taken + scores + places, score_BS.numel()), Work(taken + places + x + scores, 0)
    )


def _sizes(random: Random) -> dict[str, Any]:
    length = random.randint(1, 90)
    return {
        "batch": random.randint(1, 3),
        "length": length,
        "dim": random.randint(1, 70),
        "k": random.choice((1, length, random.randint(1, length))),
        "ties": random.random() < 0.3,
        "wide": random.random() < 0.3,
    }


OP = Operator(
    name="token_router",
    function=token_router,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(Huge({"batch": (1 << 10) + 3, "length": 2048, "dim": 1024, "k": 100}),),
    gradients=("x_BSD", "score_BS"),
    cases=(
        Case("3x63x20 k17", {"batch": 3, "length": 63, "dim": 20, "k": 17}),
        Case("1x1x1 k1", {"batch": 1, "length": 1, "dim": 1, "k": 1}),
        Case("2x100x7 k100", {"batch": 2, "length": 100, "dim": 7, "k": 100}),
        Case(
            "2x65x1100 k9 equal scores",
            {"batch": 2, "length": 65, "dim": 1100, "k": 9, "ties": True, "wide": True},
        ),
        Case("0x5x8 k2", {"batch": 0, "length": 5, "dim": 8, "k": 2}),
        Case("8x4096x2048 k512", {"batch": 8, "length": 4096, "dim": 2048, "k": 512}, bench=True),
    ),
)
