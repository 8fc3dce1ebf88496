"""Errors by rank and precision are bounded, causal, and decided where the kernel runs."""

import math

import pytest
import torch
from subjects import DEVICE, fitting

import kernels
from kernels import OPS
from kernels.adaptive_attention import _rounded
from kernels.core.operator import random_tensor
from kernels.core.triton_helpers import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the generic tests try the kernels there")
OP = OPS["adaptive_attention"]
DIM = 32


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return random_tensor(*shape, device=DEVICE, dtype=dtype, seed=seed)


def qkv(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [drawn(2, 3, 40, DIM, seed=i, dtype=dtype) for i in range(3)]


def per_head(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE)


def implementations(dtype: torch.dtype, allow_fp8: bool):
    bits = per_head(8, 8, 8)
    inputs = [*qkv(dtype), None, bits, True, None, allow_fp8]
    names = ("q_BHSD", "k_BGTD", "v_BGTD", "rank", "bits", "causal", "scale", "fp8")
    return fitting(OP, dict(zip(names, inputs, strict=True)))


@pytest.mark.parametrize("causal", [True, False])
def test_with_every_column_and_bit_it_is_attention(causal):
    q, k, v = qkv()
    expected = kernels.attention(q, k, v, causal=causal, backend="manual")
    for rank, bits in ((None, None), (per_head(DIM, DIM, DIM), per_head(32, 32, 32))):
        actual = kernels.adaptive_attention(q, k, v, rank, bits, causal=causal)
        torch.testing.assert_close(actual, expected)


def test_columns_past_the_rank_are_not_looked_at():
    q, k, v = qkv()
    rank = per_head(3, 17, DIM)
    for name, call in implementations(torch.float32, False).items():
        before = call(q, k, v, rank, None, True, None, False)
        for x in (q, k):
            for head, columns in enumerate(rank.tolist()):
                x[:, head, :, columns:] = torch.nan
        after = call(q, k, v, rank, None, True, None, False)
        assert torch.equal(before, after), name
        q, k, v = qkv()


def test_values_out_of_range_are_brought_into_it():
    q, k, v = qkv()
    actual = kernels.adaptive_attention(q, k, v, per_head(0, -5, 1000), per_head(64, 33, 99))
    expected = kernels.adaptive_attention(q, k, v, per_head(1, 1, DIM))
    torch.testing.assert_close(actual, expected)


def test_what_a_rank_leaves_out_is_bounded_in_the_basis_that_low_rank_gives():
    q, k, v = (x.double() for x in qkv())
    k = k * torch.linspace(1, 0.02, DIM, device=DEVICE)  # some directions matter more
    mix = torch.linalg.qr(drawn(DIM, DIM, seed=9).double())[0]
    q, k = q @ mix, k @ mix
    basis, _ = kernels.low_rank(k.transpose(0, 1).flatten(1, 2), DIM)
    q, k = q @ basis, k @ basis
    scale = DIM**-0.5
    full = kernels.adaptive_attention(q, k, v, scale=scale)
    previous = math.inf
    for rank in (4, 16, 28):
        d = scale * q[..., rank:].norm(dim=-1).max() * k[..., rank:].norm(dim=-1).max()
        bound = float(torch.expm1(2 * d) * v.abs().max())
        result = kernels.adaptive_attention(q, k, v, per_head(rank, rank, rank), scale=scale)
        off = float((result - full).abs().max())
        assert 0 < off <= bound
        assert off < previous, "more columns, less lost"
        previous = off


@pytest.mark.parametrize(
    ("dtype", "relative", "units"),
    [(torch.float16, 2**-11, 2**-25), (torch.float8_e4m3fn, 2**-4, 2**-10)],
)
def test_rounding_is_off_by_at_most_half_a_step(dtype, relative, units):
    x = drawn(300, DIM) * drawn(300, DIM, seed=1).mul(4).exp()
    unit = torch.exp2(torch.floor(torch.log2(x.abs().amax(-1, keepdim=True))) - 7)
    off = (_rounded(x, dtype) - x).abs()
    allowed = torch.maximum(x.abs() * relative, unit * units)
    assert (off <= allowed).all()
    assert (off > 0.9 * allowed).any(), "the bound is one that is reached"


def test_rows_of_zeros_stay_so():
    x = torch.zeros(3, DIM, device=DEVICE)
    assert torch.equal(_rounded(x, torch.float8_e4m3fn), x)


@pytest.mark.parametrize("allow_fp8", [False, True])
def test_a_token_does_not_depend_on_later_ones_in_any_precision(allow_fp8):
    dtype = torch.float16 if allow_fp8 else torch.float32
    for name, call in implementations(dtype, allow_fp8).items():
        q, k, v = qkv(dtype)
        options = (per_head(7, 16, DIM), per_head(8, 8, 16), True, None, allow_fp8)
        before = call(q, k, v, *options)
        for x in (q, k, v):
            x[:, :, 25:] = 50 * x[:, :, 25:] + 1
        assert torch.equal(call(q, k, v, *options)[:, :, :25], before[:, :, :25]), name


def test_fewer_bits_lose_more_and_fp8_only_where_it_is_allowed():
    q, k, v = qkv()
    full = kernels.adaptive_attention(q, k, v)

    def off(bits: int, allow_fp8: bool) -> float:
        precision = per_head(bits, bits, bits)
        # By name: what Triton has beside FP32 is not FP8.
        result = kernels.adaptive_attention(
            q, k, v, None, precision, allow_fp8=allow_fp8, impl="torch"
        )
        return float((result - full).abs().max())

    assert off(32, True) < 1e-5
    assert off(32, True) < off(16, True) < 0.1 * off(8, True)
    assert off(8, False) == off(16, False) == off(16, True)


def test_the_gradient_is_that_of_the_rounded_tensors_and_passes_straight_through():
    q, k, v = qkv()
    precision = per_head(8, 8, 8)
    rounded = [_rounded(x, torch.float8_e4m3fn) for x in (q, k)] + [v]
    dout = drawn(*q.shape, seed=5)
    gradients = []
    for tensors, bits in (([q, k, v], precision), (rounded, None)):
        leaves = [x.clone().requires_grad_() for x in tensors]
        out = kernels.adaptive_attention(*leaves, None, bits, allow_fp8=True, impl="manual")
        gradients.append(torch.autograd.grad(out, leaves, dout))
    for straight, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(straight, exact)


def test_choices_may_change_without_another_trace():
    compiled = torch.compile(
        lambda *args: kernels.adaptive_attention(*args), fullgraph=True, backend="eager"
    )
    q, k, v = qkv()
    rank, bits = per_head(4, 8, 16), per_head(16, 32, 16)
    kernels.reset_usage()
    for _ in range(3):
        result = compiled(q, k, v, rank, bits)
        torch.testing.assert_close(result, kernels.adaptive_attention(q, k, v, rank, bits))
        rank += 5
        bits.copy_(bits.roll(1))
    torch._dynamo.reset()
    (uses,) = kernels.usage()["adaptive_attention"].values()
    assert uses == 4, "one trace and three calls that were not compiled"


def test_the_cost_follows_the_ranks():
    inputs = [*qkv(), None, None, True, None, False]
    full = OP.cost(*inputs)
    inputs[3] = per_head(DIM // 4, DIM // 4, DIM // 4)
    low = OP.cost(*inputs)
    assert low.forward.flops * 8 == full.forward.flops * 5
    assert low.backward.flops * 8 == full.backward.flops * 5
    assert low.forward.bytes < full.forward.bytes
