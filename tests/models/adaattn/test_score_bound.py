"""Bound on the error of attention scores of reduced rank and precision."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.adaptive_attention import prepared
from models.layers.adaptive.adaptation import (
    score_error,
)
from models.layers.adaptive.choice import Chosen
from models.layers.adaptive.measurements import longest
from models.layers.adaptive.rules import Rules

HEADS, DIM = 3, 16


def drawn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@given(
    seed=st.integers(0, 200),
    rank=st.integers(1, DIM),
    bits=st.sampled_from([8, 16, 32]),
    decay=st.floats(0.5, 1),
    factor=st.floats(1, 2),
)
def test_no_score_is_further_off_than_the_bound(seed, rank, bits, decay, factor):
    spectrum = decay ** torch.arange(DIM).double()
    q, k = (drawn(2, HEADS, 12, DIM, seed=seed + i) * spectrum.float() for i in range(2))
    rules = Rules(allow_fp8=True)
    chosen = Chosen(
        torch.full((1, HEADS), rank),
        torch.full((1, HEADS), bits),
        torch.eye(DIM).expand(1, HEADS, DIM, DIM),
        torch.full((1, HEADS), factor),
    )
    (choice,) = chosen.layers(rules, q.dtype, adapts=True)
    lengths = (longest(x, choice.parts)[None] for x in (factor * q, k))
    (bound,) = score_error(*lengths, chosen, 0.25, rules, q.dtype)
    low_q, low_k, _ = prepared(factor * q, k, choice.rank, choice.bits, 0.25, True)
    exact = q.double() @ k.double().mT * 0.25
    off = (low_q.double() @ low_k.double().mT * 0.25 - exact).abs().amax((0, 2, 3))
    assert (off <= bound * (1 + 1e-5) + 1e-6).all()
    if rank == DIM and bits == 32 and factor == 1:
        assert not bound.any()


@pytest.mark.parametrize("factor", [1.25, 2.0, 4.0])
@pytest.mark.parametrize("rank", [DIM // 4, DIM // 2, DIM])
def test_the_bound_of_a_score_is_near_the_largest_error(rank, factor):
    """Apart from it, for it supposes that the longest of both are parallel, also past the rank."""
    q, k = (drawn(2, HEADS, 200, DIM, seed=i) for i in range(2))
    chosen = Chosen(
        torch.full((1, HEADS), rank),
        torch.full((1, HEADS), 32),
        torch.eye(DIM).expand(1, HEADS, DIM, DIM),
        torch.full((1, HEADS), factor),
    )
    (choice,) = chosen.layers(Rules(), q.dtype, adapts=True)
    lengths = (longest(x, choice.parts)[None] for x in (factor * q, k))
    (bound,) = score_error(*lengths, chosen, 0.25, Rules(), q.dtype)
    low_q, low_k, _ = prepared(factor * q, k, choice.rank, choice.bits, 0.25, False)
    off = (low_q @ low_k.mT - q @ k.mT).abs().amax((0, 2, 3)) * 0.25
    ratio = bound / off
    assert (ratio >= 1).all() and (ratio < 4).all(), ratio
