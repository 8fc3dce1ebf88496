"""AdaAttention alone: its output is within the bound that it reports, whatever it chose."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from kernels.core.triton_helpers import INSTALLED
from models import ConfigurationError
from models.adaattn import AdaAttention
from models.layers.adaptive.adaptation import PATIENCE

DIM, HEADS = 32, 2
TRITON_STEP = Path(__file__).parents[1] / "triton_step.py"


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention(seed=0, **options):
    """Make a module with queries and keys in few directions, values and outputs passing through."""
    module = AdaAttention(DIM, HEADS, refresh_every=1, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        weight = torch.randn(3, DIM, DIM, generator=generator) / math.sqrt(DIM)
        weight[:2] *= 4 * 0.6 ** torch.arange(DIM // HEADS).repeat(HEADS)[:, None]
        module.heads.qkv.weight.copy_(weight.flatten(0, 1))
        module.heads.out.weight.copy_(torch.eye(DIM))
    return module


def by_hand(module, q, k, v, seen):
    """Compute attention with all columns, in FP64, before the output projection: [B, H, S, D]."""
    weights = module.heads.qkv.weight.double().chunk(3)
    q, k, v = (
        (x.double() @ w.T).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for x, w in zip((q, k, v), weights, strict=True)
    )
    scores = (q @ k.mT / math.sqrt(DIM // HEADS)).masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ v


def test_it_starts_with_weights_drawn_from_torch_s_seed():
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        weights.append(AdaAttention(256, 4).heads.qkv.weight.detach())
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert weights[0].std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keys", [9, 20])
@torch.no_grad()
def test_with_nothing_to_adapt_it_is_plain_attention(causal, keys):
    module = attention(causal=causal, adaptive_rank=False, adaptive_precision=False)
    q, k, v = drawn(2, 9, DIM), drawn(2, keys, DIM, seed=1), drawn(2, keys, DIM, seed=2)
    seen = torch.ones(9, keys, dtype=torch.bool)
    expected = by_hand(module, q, k, v, seen.tril(keys - 9) if causal else seen)
    for _ in range(3):
        out, statistics = module(q, k, v)
    expected = expected.transpose(1, 2).flatten(2)
    assert (out - expected).norm() < 2e-6 * expected.norm()
    assert not statistics["output_error"].any()


@pytest.mark.parametrize(("allow_fp8", "bits"), [(False, 16), (True, 8)])
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_the_output_is_within_the_reported_bound(masked, allow_fp8, bits):
    module = attention(
        rank_ratio=0.25, rank_threshold=0.9, rank_estimation="energy", allow_fp8=allow_fp8
    )
    module.heads.qkv.weight[: 2 * DIM] /= 10
    x = drawn(2, 40, DIM)
    mask = (drawn(2, 1, 1, 40, seed=3) > -1) | torch.eye(40, dtype=torch.bool) if masked else None
    causal = torch.ones(40, 40, dtype=torch.bool).tril()
    exact = by_hand(module, x, x, x, causal & mask if masked else causal)
    for i in range(PATIENCE + 1):
        out, statistics = module(x, x, x, mask=mask)
        off = out.double().unflatten(-1, (HEADS, -1)).transpose(1, 2) - exact
        off = off.abs().amax((0, 2, 3))
        bound = statistics["output_error"] + 1e-5
        assert (off <= bound).all(), i
    assert (off > 1e-5).all()
    assert (statistics["rank"] < DIM // HEADS).all()
    assert (statistics["precision"] == bits).all()


@torch.no_grad()
def test_self_attention_is_attention_over_oneself():
    module = attention(causal=False)
    x = drawn(2, 11, DIM)
    module.adapting = False
    together, apart = module(x, x, x)[0], module(x, x.clone(), x.clone())[0]
    torch.testing.assert_close(together, apart)


@torch.no_grad()
def test_a_key_that_the_mask_hides_has_no_part():
    module = attention()
    module.adapting = False
    x = drawn(1, 8, DIM)
    mask = torch.ones(8, dtype=torch.bool)
    mask[3] = False
    before, _ = module(x, x, x, mask=mask[None])
    changed = x.clone()
    changed[:, 3] += 1
    after, _ = module(x, changed, changed, mask=mask[None])
    torch.testing.assert_close(before, after)
    assert not torch.allclose(module(x, x, x)[0], before)


@torch.no_grad()
def test_statistics_say_how_this_modules_attention_has_run():
    module, other = attention(), attention()
    kernels.reset_usage()
    assert module.get_statistics()["calls"] == 0
    x = drawn(1, 8, DIM)
    mask = torch.ones(8, 8, dtype=torch.bool)
    for _ in range(3):
        module(x, x, x)
    module(x, x, x, mask=mask)
    other(x, x, x)
    kernels.attention(*(drawn(1, 2, 8, 16),) * 3)
    statistics = module.get_statistics()
    assert statistics["by_implementation"] == {"manual": 3, "sdpa_masked": 1}
    assert statistics["calls"] == 4 and statistics["adaptive"] == 3
    assert statistics["fallbacks"] == 4 and statistics["chunked"] == 0
    counted = {"attention": {"manual": 3, "sdpa_flash": 1, "chunked": 1}}
    assert kernels.attention_usage(counted)["flash_ratio"] == pytest.approx(1 / 5)
    assert other.get_statistics()["calls"] == 1
    kernels.reset_usage()
    module(x, x, x, mask=mask)
    assert module.get_statistics()["calls"] == 5 and module.get_statistics()["adaptive"] == 3


@torch.no_grad()
def test_a_long_sequence_runs_in_chunks():
    module = attention()
    kernels.reset_usage()
    x = drawn(1, 8192, DIM)
    out, _ = module(x, x, x)
    assert out.isfinite().all()
    assert module.get_statistics()["by_implementation"] == {"chunked": 1}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: AdaAttention(30, 4), "embed_dim = 30 cannot be divided into num_heads = 4 heads"),
        (lambda: AdaAttention(32, 0), "embed_dim = 32 cannot be divided into num_heads = 0 heads"),
        (lambda: AdaAttention(rank_ratio=0), "rank_ratio = 0 is not above 0 and at most 1"),
        (lambda: AdaAttention(rank_threshold=2), "rank_threshold = 2 is not above 0 and at most 1"),
        (lambda: AdaAttention(refresh_every=0), "refresh_every = 0 is less than 1"),
        (lambda: AdaAttention(default_precision="fp8"), "'fp8' needs allow_fp8 = True"),
        (lambda: AdaAttention(default_precision="int8"), "'int8' is not one of ('inputs', 'fp16'"),
        (lambda: AdaAttention(rank_estimation="svd"), "'svd' is not one of ('entropy', 'energy')"),
        (lambda: called(drawn(2, 3, 8)), "the last dimension must be embed_dim = 32, but q has 8"),
        (lambda: called(drawn(3, DIM)), "expected q (B, S, 32) and k, v (B, T, 32), but got (3, "),
        (lambda: called(drawn(2, 9, DIM)), "number of queries, 9, but is 5"),
        (lambda: called(drawn(2, 5, DIM), mask=torch.ones(5, 5)), "mask must be Boolean and"),
        (
            lambda: called(drawn(2, 5, DIM), mask=torch.ones(3, 1, 5, 5, dtype=torch.bool)),
            "broadcast to (2, 2, 5, 5), but is (3, 1, 5, 5)",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_a_sentence(make, sentence):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert str(caught.value).startswith("AdaAttention: ") and sentence in str(caught.value)


def called(q, mask=None):
    k = drawn(2, 5, DIM) if q.dim() == 3 and q.shape[2] == DIM else q
    return attention()(q, k, k, mask=mask)


@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="test_adaattn_gpu does this on the GPU")
def test_triton_and_torch_train_alike_in_the_interpreter():
    done = subprocess.run(
        [sys.executable, str(TRITON_STEP)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.split() == ["alike"]
