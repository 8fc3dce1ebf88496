"""linear_cross_entropy with its tokens in several chunks, and the sum over them."""

import math
import sys

import pytest
import torch
from subjects import DEVICE, implementations
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels import OPS, Case, linear_cross_entropy
from kernels.core.check import Exact
from kernels.core.triton_helpers import missing

OP = OPS["linear_cross_entropy"]
MODULE = sys.modules["kernels.linear_cross_entropy"]  # the package has the function of that name
OURS = ("triton", "triton_small", "chunked", "torch")
CASE = next(case for case in OP.cases if case.name == "63x100 V1000")  # some tokens do not count


@pytest.mark.parametrize("impl", sorted({*OURS} & {*implementations(OP)}))
@pytest.mark.parametrize("tokens", [16, 62])
def test_the_chunks_together_are_the_whole(impl, tokens, monkeypatch):
    inputs = OP.inputs(CASE, DEVICE, torch.float32, 0)
    n_words = inputs["weight_VD"].shape[0]
    monkeypatch.setattr(MODULE, "CHUNK_BYTES", 4 * n_words * tokens)
    wrong = [str(c) for c in Exact(OP, inputs).compare(OP.implementations[impl]) if not c.right]
    assert not wrong


@pytest.mark.parametrize("words", [5, 64, 65, 1000])
def test_sizes_of_products_are_aligned_for_any_number_of_words(words):
    rows, dim = 16, 8
    sizes = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_):
                sizes.extend(size for factor in args[-2:] for size in factor.shape)
                sizes.extend(factor.stride(0) for factor in args[-2:] if factor.stride(1) == 1)
            return function(*args, **(kwargs or {}))

    case = Case("aligned", {"rows": rows, "dim": dim, "words": words})
    inputs = OP.inputs(case, DEVICE, torch.float32, 0)
    leaves = {n: inputs[n].detach().requires_grad_() for n in ("x", "weight_VD")}
    with Products():
        linear_cross_entropy(**(inputs | leaves), impl="chunked").backward()
    assert leaves["weight_VD"].grad.shape == (words, dim)
    assert sizes and all(size in (rows, dim) or size % MODULE.ALIGNMENT == 0 for size in sizes)


@pytest.mark.parametrize(("ahead", "rel"), [(13.0, 1e-3), (20.0, 0.25)])
@pytest.mark.parametrize("impl", sorted({*OURS} & {*implementations(OP)}))
def test_a_small_loss_of_large_logits_and_its_gradient_keep_their_digits(impl, ahead, rel):
    n_words, n_tokens = 1000, 16
    weight_VD = 200 + ahead * torch.eye(n_words, n_tokens, device=DEVICE)
    weight_VD.requires_grad_()
    x, target = torch.eye(n_tokens, device=DEVICE), torch.arange(n_tokens, device=DEVICE)
    loss = linear_cross_entropy(x, weight_VD, target, impl=impl)
    (gradient,) = torch.autograd.grad(loss, [weight_VD])
    expected = math.log1p((n_words - 1) * math.exp(-ahead))
    assert loss.item() == pytest.approx(expected, rel=rel)
    of_targets = gradient.diagonal().tolist()
    assert of_targets == pytest.approx([math.expm1(-expected) / n_tokens] * n_tokens, rel=rel)


@pytest.mark.parametrize("gradient", ["x", "weight_VD"])
@pytest.mark.parametrize("impl", sorted({*OURS} & {*implementations(OP)}))
def test_one_gradient_alone_is_what_it_is_beside_the_other(impl, gradient, monkeypatch):
    monkeypatch.setattr(MODULE, "CHUNK_BYTES", 4 * 1000 * 40)
    inputs = OP.inputs(CASE, DEVICE, torch.float32, 0)

    def gradients_of(*names):
        leaves = {n: inputs[n].detach().requires_grad_() for n in names}
        loss = linear_cross_entropy(**(inputs | leaves), impl=impl)
        return dict(zip(names, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    torch.testing.assert_close(
        gradients_of(gradient)[gradient], gradients_of("x", "weight_VD")[gradient]
    )


@pytest.mark.skipif(missing(DEVICE.type) is not None, reason="needs Triton to run")
@pytest.mark.parametrize("counted", [0, 1, 5000])
def test_sum_and_share_are_over_more_tokens_than_one_block_holds(counted):
    torch.manual_seed(0)
    losses = torch.rand(9000, device=DEVICE)
    target = torch.where(torch.arange(9000, device=DEVICE) < counted, 3, -1)
    share = MODULE.share_by_triton(target, -1, torch.float32)
    torch.testing.assert_close(share, MODULE._share_torch(target, -1, torch.float32))
    for factor in (None, share):
        torch.testing.assert_close(
            MODULE.total_by_triton(losses, factor), MODULE._total_torch(losses, factor)
        )


@pytest.mark.skipif(missing(DEVICE.type) is not None, reason="needs Triton to run")
@pytest.mark.parametrize("share", [None, 0.5, math.inf])
@pytest.mark.parametrize("factor", [1.0, -2.0, 0.0])
def test_gradients_of_any_length_are_scaled_in_place(factor, share, monkeypatch):
    monkeypatch.setattr(sys.modules[MODULE.scale_by_triton.__module__], "sm_count", lambda _: 1)
    torch.manual_seed(0)
    x = torch.randn(5, 16411, device=DEVICE)
    factors = [None if f is None else torch.tensor(f, device=DEVICE) for f in (factor, share)]
    expected = MODULE._scale_torch(x.clone(), *factors)
    scaled = MODULE.scale_by_triton(x, *factors)
    assert scaled is x
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("impl", sorted({*OURS} & {*implementations(OP)}))
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_gradient_of_the_loss_other_than_1_scales_every_gradient(impl, reduction):
    inputs = OP.inputs(CASE, DEVICE, torch.float32, 0) | {"reduction": reduction}
    leaves = {n: inputs[n].detach().requires_grad_() for n in ("x", "weight_VD")}
    loss = linear_cross_entropy(**(inputs | leaves), impl=impl)
    passes = [torch.autograd.grad(loss * f, [*leaves.values()], retain_graph=True) for f in (1, 3)]
    for once, thrice in zip(*passes, strict=True):
        torch.testing.assert_close(thrice, 3 * once)


@pytest.mark.parametrize("impl", sorted({*OURS} & {*implementations(OP)}))
def test_a_mean_over_many_tokens_keeps_small_gradients_in_fp16(impl):
    n_tokens, n_words = 3000, 600
    x = torch.zeros(n_tokens, 2, device=DEVICE, dtype=torch.float16)
    x[:, 0] = 1
    weight = torch.zeros(n_words, 2, device=DEVICE, dtype=torch.float16)
    weight[0, 0] = 4  # every other word has a probability of about 0.0015
    weight.requires_grad_()
    target = torch.zeros(n_tokens, device=DEVICE, dtype=torch.int64)
    loss = linear_cross_entropy(x, weight, target, impl=impl)
    (gradient,) = torch.autograd.grad(loss * 1024, [weight])
    probability = 1 / (math.exp(4) + n_words - 1)
    expected = torch.full_like(gradient[1:, 0], 1024 * probability)
    torch.testing.assert_close(gradient[1:, 0], expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("impl", sorted({"chunked", "torch"} & {*implementations(OP)}))
def test_a_loss_in_fp64_is_exact_to_fp64(impl, reduction):
    inputs = OP.inputs(CASE, DEVICE, torch.float64, 0) | {"reduction": reduction}
    exact = torch.nn.functional.cross_entropy(
        inputs["x"] @ inputs["weight_VD"].T, inputs["target"], reduction=reduction
    )
    loss = linear_cross_entropy(**inputs, impl=impl)
    torch.testing.assert_close(loss, exact, rtol=1e-12, atol=0)


def test_a_map_to_no_words_is_left_to_torch():
    x, weight = torch.randn(3, 4), torch.randn(0, 4)
    with pytest.raises(kernels.Unavailable, match="does not support empty tensors"):
        linear_cross_entropy(x, weight, torch.zeros(3, dtype=torch.int64), impl="chunked")
