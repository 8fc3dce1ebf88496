"""Inputs at the edge of what is legal: no token that counts, one element per head, mixed dtypes."""

import sys
import weakref

import pytest
import torch
from subjects import pretend_to_compile
from torch._subclasses import FakeTensorMode

import kernels
from kernels import OPS, hardware
from kernels.adaptive_attention import _launch as adaptive
from kernels.attention import _flex, _sdpa
from kernels.core import tuning
from kernels.core.check import Exact
from kernels.core.triton_helpers import INTERPRETED
from kernels.measure import peers

LOSS = OPS["linear_cross_entropy"]
LOSSES = ["torch", "chunked", *(["triton"] if INTERPRETED else [])]


def loss_and_slopes(impl, x, weight, target, reduction):
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = kernels.linear_cross_entropy(*leaves, target, reduction=reduction, impl=impl)
    return loss.detach(), *torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("impl", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_batch_of_which_no_token_counts_moves_no_weight(impl, reduction):
    x, weight = torch.randn(5, 8), torch.randn(11, 8)
    loss, *slopes = loss_and_slopes(impl, x, weight, torch.full((5,), -100), reduction)
    assert loss.isnan() if reduction == "mean" else loss == 0
    assert all(torch.equal(slope, torch.zeros_like(slope)) for slope in slopes)


@pytest.mark.parametrize("impl", LOSSES)
def test_a_token_that_does_not_count_may_be_infinite(impl):
    x, weight = torch.randn(5, 8), torch.randn(11, 8)
    x[0] = torch.inf
    target = torch.tensor([-100, 1, 2, 3, 4])
    loss = kernels.linear_cross_entropy(x, weight, target, impl=impl)
    rest = kernels.linear_cross_entropy(x[1:], weight, target[1:], impl="torch")
    torch.testing.assert_close(loss, rest)


@pytest.mark.parametrize("impl", LOSSES)
@pytest.mark.parametrize("words", [[0], [0, 7], [10]])
def test_a_word_of_probability_zero_adds_nothing_to_the_loss(impl, words):
    x, weight, target = torch.ones(3, 1), torch.randn(11, 1), torch.tensor([1, 2, -100])
    weight[words] = -torch.inf
    results = [loss_and_slopes(i, x, weight, target, "sum") for i in (impl, "torch")]
    torch.testing.assert_close(*(loss for loss, *_ in results))
    torch.testing.assert_close(*(dweight for *_, dweight in results))


@pytest.mark.skipif(not INTERPRETED, reason="torch raises an error on the CPU")
@pytest.mark.parametrize("target", [11, -1, 1 << 40])
def test_a_target_out_of_range_makes_the_loss_nan(target):
    x, weight = torch.randn(3, 8), torch.randn(11, 8)
    loss, dx, _ = loss_and_slopes("triton", x, weight, torch.tensor([1, target, -100]), "sum")
    assert loss.isnan()
    assert dx.isnan().all(1).tolist() == [False, True, False]


@pytest.mark.skipif(not INTERPRETED, reason="torch raises an error on the CPU")
@pytest.mark.parametrize("position", [-1, 5, 7, 1 << 40])
@pytest.mark.parametrize("matrix", [None, torch.ones(3, 4, 4)])
def test_queries_of_a_token_without_a_row_in_the_cache_are_nan(position, matrix):
    table, cache, at = torch.ones(8, 2), torch.randn(2, 2, 5, 4), torch.tensor(position)
    before = cache.clone()
    q, _ = kernels.rope_to_cache(
        torch.randn(2, 4, 4), cache, table, table, at, matrix_ZDD=matrix, impl="triton"
    )
    assert q.isnan().all()
    assert torch.equal(cache, before)


@pytest.mark.parametrize("impl", LOSSES)
def test_the_loss_of_one_token_needs_no_dimension_of_tokens(impl):
    x, weight, target = torch.randn(8), torch.randn(11, 8), torch.tensor(3)
    with_dimension = loss_and_slopes("torch", x[None], weight, target[None], "mean")
    result = loss_and_slopes(impl, x, weight, target, "mean")
    torch.testing.assert_close(result[0], with_dimension[0])
    torch.testing.assert_close(result[1], with_dimension[1][0])


def test_auto_attends_to_heads_of_one_element_however_far_apart_these_are():
    x = torch.randn(1, 2, 1, 5).transpose(2, 3)
    assert x.stride(-1) == 5 and x.is_contiguous()
    result = kernels.attention(x, x, x)
    torch.testing.assert_close(result, kernels.attention(x, x, x, backend="manual"))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [(5, 5), (3, 5)])
@pytest.mark.parametrize("kv_length", [None, torch.tensor(4), torch.tensor(0)])
def test_a_window_of_all_keys_reaches_no_backend(causal, lengths, kv_length):
    q, k = torch.randn(1, 2, lengths[0], 8), torch.randn(1, 2, lengths[1], 8)
    windows = []

    def watch(op, name, args):
        windows.append(args[4])
        return op.implementations["manual"].call(*args)

    with kernels.watched(watch):
        results = [
            kernels.attention(q, k, k, causal=causal, window=window, kv_length=kv_length)
            for window in (None, 5, 1 << 40, 4)
        ]
    assert windows == [None, None, None, 4]
    definition = OPS["attention"].reference
    for result in results[:3]:
        assert torch.equal(result, definition(q, k, k, causal, 5, None, kv_length))
    assert torch.equal(results[3], definition(q, k, k, causal, 4, None, kv_length))


@pytest.mark.parametrize("attend", [kernels.attention, kernels.adaptive_attention])
def test_autocast_casts_what_differs_as_it_does_for_torch(attend):
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        result = attend(q, k.bfloat16(), v.bfloat16())
        alike = attend(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert result.dtype == torch.bfloat16 and torch.equal(result, alike)


def test_a_scale_of_zero_is_none_of_the_rank_s():
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    result = kernels.adaptive_attention(q, k, v, causal=False, scale=0.0)
    torch.testing.assert_close(result, v.mean(2, keepdim=True).expand_as(v))
    assert "scale" in adaptive.TRITON.refuses(q, k, v, None, None, False, 0.0, False)


def test_what_a_gpu_without_fp8_lacks_is_known_while_compiling(monkeypatch):
    monkeypatch.setattr(adaptive, "_FP8_UNITS", lambda _: "FP8 needs another GPU")
    pretend_to_compile(monkeypatch)
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 2, 5, 16, dtype=torch.bfloat16, device="cuda")
        bits = torch.empty(2, dtype=torch.int32, device="cuda")
        refused = adaptive.TRITON.refuses(q, q, q, None, bits, True, None, True)
    assert refused == "FP8 needs another GPU"


@pytest.mark.parametrize(
    ("keys", "deterministic", "expected"),
    [(1, False, "more than one key"), (4, True, "deterministic"), (4, False, None)],
)
def test_what_torch_says_of_cudnn_is_known_while_compiling(
    monkeypatch, keys, deterministic, expected
):
    pretend_to_compile(monkeypatch)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    q = torch.empty(1, 2, keys, 16, dtype=torch.bfloat16)
    refused = _sdpa.BACKENDS["sdpa_cudnn"].refuses(q, q, q, True, None, None, None)
    assert refused is None if expected is None else expected in refused


@pytest.mark.parametrize(
    ("capability", "dim", "trained", "refused"),
    [
        ((8, 6), 224, True, True),
        ((8, 9), 200, True, True),
        ((12, 0), 200, True, True),
        ((8, 9), 200, False, False),
        ((8, 9), 192, True, False),
        ((8, 9), 256, True, False),
        ((8, 0), 200, True, False),
        ((9, 0), 200, True, False),
    ],
)
def test_head_dimensions_that_flash_does_not_train_are_known_while_compiling(
    monkeypatch, capability, dim, trained, refused
):
    pretend_to_compile(monkeypatch)
    with torch._subclasses.FakeTensorMode(), hardware.imagined(capability):
        q = torch.empty(1, 2, 5, dim, dtype=torch.bfloat16, device="cuda", requires_grad=trained)
        why = _sdpa.BACKENDS["sdpa_flash"].refuses(q, q, q, True, None, None, None)
    assert bool(why and "cannot train head dimensions" in why) == refused


@pytest.mark.parametrize(
    ("capability", "dtype", "dim", "refused"),
    [
        ((8, 0), torch.float16, 12, True),
        ((8, 0), torch.float16, 24, False),
        ((7, 0), torch.float16, 12, True),
        ((6, 0), torch.float16, 12, False),
        ((9, 0), torch.float32, 6, True),
        ((9, 0), torch.float32, 12, False),
        ((7, 5), torch.float32, 6, False),
    ],
)
def test_head_dimensions_that_the_efficient_backend_refuses_are_known_while_compiling(
    monkeypatch, capability, dtype, dim, refused
):
    pretend_to_compile(monkeypatch)
    with torch._subclasses.FakeTensorMode(), hardware.imagined(capability):
        q = torch.empty(1, 2, 5, dim, dtype=dtype, device="cuda")
        why = _sdpa.BACKENDS["sdpa_efficient"].refuses(q, q, q, True, 2, None, None)
    assert bool(why and "supports only head dimensions" in why) == refused


def test_a_mask_first_made_without_gradients_can_be_trained_with():
    _flex._block_mask.cache_clear()
    with torch.inference_mode():
        mask = _flex._block_mask(130, 130, True, None, "cpu")
    assert not any(x.is_inference() for x in mask.as_tuple() if isinstance(x, torch.Tensor))


def by_products(x):
    return kernels.fourier_mix(x, cutoff=0.3, impl="matmul")


@pytest.fixture
def no_matrix():
    matrix = sys.modules["kernels.fourier_mix"]._matrix_once
    matrix.cache_clear()
    yield
    matrix.cache_clear()


def test_a_filters_matrix_first_made_without_gradients_can_be_trained_with(no_matrix):
    x = torch.randn(2, 12, 4)
    with torch.inference_mode():
        by_products(x)
    (slope,) = torch.autograd.grad(by_products(x.requires_grad_()).sum(), x)
    torch.testing.assert_close(slope, by_products(torch.ones_like(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("captured", [False, True])
def test_a_filters_matrix_stays_if_a_graph_has_captured_it(no_matrix, monkeypatch, captured):
    matrix = sys.modules["kernels.fourier_mix"]._matrix_once

    def of_size(n):
        return matrix(n, 0.5, 0.1, False, "cpu", torch.float32)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    read = weakref.ref(of_size(3))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for n in range(4, 40):
        of_size(n)
    assert (read() is not None) == captured


def test_a_filters_matrix_first_made_on_imagined_tensors_is_none_that_counts(no_matrix):
    with FakeTensorMode():
        by_products(torch.empty(2, 12, 4))
    x = torch.randn(2, 12, 4)
    result = by_products(x)
    assert type(result) is torch.Tensor
    torch.testing.assert_close(result, kernels.fourier_mix(x, cutoff=0.3, impl="torch"))
    with FakeTensorMode():
        assert by_products(torch.empty(2, 12, 4)).shape == (2, 12, 4)


def test_the_default_device_is_none_of_a_filters_matrix(no_matrix):
    x = torch.randn(2, 12, 4)
    with torch.device("meta"):
        result = by_products(x)
    torch.testing.assert_close(result, kernels.fourier_mix(x, cutoff=0.3, impl="torch"))


def test_timing_tiles_draws_nothing_of_what_models_draw():
    before = torch.get_rng_state()
    zeros = torch.zeros(4, 6).t()
    drawn = tuning.timeable(zeros)
    assert drawn.stride() == zeros.stride() and drawn.any()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_residual_in_fp64_is_not_added_in_fp32():
    x, residual = torch.randn(3, 8), torch.randn(3, 8, dtype=torch.float64)
    refused = OPS["add_rms_norm"].implementations["triton"].refuses(x, residual, None, 1e-6)
    assert refused == "computes in FP32 and does not support FP64"
    _, total = kernels.add_rms_norm(x, residual)
    assert torch.equal(total, x.double() + residual)


@pytest.mark.skipif(not INTERPRETED, reason="of the kernel's tiles")
@pytest.mark.parametrize("eps", [0.0, 1e-40, 1e-6])
def test_tiles_with_more_rows_than_heads_add_nothing_to_the_weights_gradients(eps):
    op = OPS["qk_norm"]
    sizes = {"batch": 1, "length": 4, "heads": 3, "kv_heads": 5, "dim": 8, "eps": eps}
    inputs = op.inputs(kernels.Case("eps", sizes), torch.device("cpu"), torch.float32, 0)
    compared = Exact(op, inputs).compare(op.implementations["triton"])
    assert not [str(c) for c in compared if not c.right]


def test_more_groups_than_a_grid_has_programs_are_refused():
    refuses = OPS["gated_rms_norm"].implementations["triton"].refuses
    x = torch.empty(2, 70_000, device="meta")
    assert refuses(x, x, None, 1, 1e-6) == "supports up to 65535 groups, not 70000"
    assert refuses(x, x, None, 2, 1e-6) is None


@pytest.mark.parametrize("name", ["liger", "fla", "quack"])
def test_the_loss_of_a_single_token_is_not_computed_by_libraries(name):
    x, weight = torch.empty(16, dtype=torch.float16), torch.empty(16, 16, dtype=torch.float16)
    title = peers.TITLES[name]
    inputs = weight, torch.tensor(3), -100, "mean"
    assert peers._SUPPORT["linear_cross_entropy"](title, x, *inputs) == (
        f"{title} needs tokens [..., D], not a tensor of shape (16,)"
    )
    inputs = weight, torch.tensor([3]), -100, "mean"
    assert peers._SUPPORT["linear_cross_entropy"](title, x[None], *inputs) is None
