"""On a Hopper GPU: attention's kernels are right, with any tile, in every run."""

import math

import pytest
import torch

import kernels
from kernels import OPS
from kernels.attention import _flash, _hopper
from kernels.core import replay

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")]

# Batch, queries, heads, key heads, head dimension, causal, keys, and for some a window.
SHAPES = [
    (2, 333, 8, 2, 128, True, 333),
    (2, 1000, 6, 6, 64, True, 1000),
    (1, 517, 8, 8, 128, False, 517),
    (2, 129, 4, 1, 128, True, 700),
    (3, 64, 16, 2, 64, True, 65),
    (1, 40, 64, 1, 128, True, 40),
    (1, 130, 2, 1, 64, False, 77),
    (1, 129, 1, 1, 64, False, 1),
    (5, 300, 16, 4, 64, True, 4096),
    (1, 2048, 4, 4, 128, True, 2048),
    (2, 333, 6, 2, 128, True, 333),
    (1, 260, 12, 2, 64, True, 300),
    (2, 200, 5, 1, 128, False, 1000),
    (1, 70, 128, 1, 64, True, 70),
    (2, 1000, 8, 2, 128, True, 1000, 200),
    (1, 900, 6, 6, 64, True, 900, 1),
    (1, 700, 3, 1, 128, True, 700, 64),
    (2, 130, 4, 1, 128, True, 1500, 129),
    (1, 129, 16, 2, 64, True, 1000, 127),
    (3, 517, 12, 2, 64, True, 517, 5000),
    (1, 2048, 4, 4, 128, True, 2048, 333),
    (5, 300, 10, 10, 64, True, 300),  # more heads than run at a time
    (3, 260, 32, 16, 128, False, 260),
]
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
FP32 = 1e-5  # of sums of order 10: the error that remains where they cancel


def heads(batch, tokens, number, dim, dtype, by_tokens):
    if by_tokens:
        x = torch.randn(batch, tokens, number, dim, device="cuda", dtype=dtype)
        return x.transpose(1, 2)
    return torch.randn(batch, number, tokens, dim, device="cuda", dtype=dtype)


def exact(q, k, v, causal, window):
    """Return output and normaliser, to base 2, in FP64."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1).double() for x in (k, v))
    scores = q.double() @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        length, keys = scores.shape[-2:]
        seen = torch.ones(length, keys, dtype=torch.bool, device="cuda").tril(keys - length)
        if window is not None:
            seen = seen.triu(keys - length - window + 1)
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ v, torch.logsumexp(scores, -1) / math.log(2)


@pytest.mark.parametrize(("dtype", "by_tokens"), [(torch.bfloat16, True), (torch.float16, False)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tile_gives_the_exact_output_and_normalisers_each_time(
    monkeypatch, shape, dtype, by_tokens
):
    batch, length, number, groups, dim, causal, keys, window = (*shape, None)[:8]
    torch.manual_seed(0)
    q = heads(batch, length, number, dim, dtype, by_tokens)
    k, v = (heads(batch, keys, groups, dim, dtype, by_tokens) for _ in range(2))
    scale = dim**-0.5
    assert _hopper.takes(q, k, v, causal, window, scale, None)
    out, lse = exact(q, k, v, causal, window)
    allowed = 2 * ROUNDING[dtype] * max(1.0, out.abs().max().item())
    for tile in _hopper.tiles(0, dtype, dim, causal, False):
        monkeypatch.setattr(_hopper.FORWARD, "tile", lambda *_, tile=tile: tile)
        replay.forget()
        for _ in range(replay.BEFORE + 3):
            poison = torch.full((1 << 24,), math.nan, device="cuda")
            del poison
            got, got_lse = _flash._forward(q, k, v, causal, window, scale, None, True)
            assert (got.double() - out).abs().max() <= allowed
            assert (got_lse.double() - lse).abs().max() <= 1e-5
    replay.forget()


@pytest.mark.parametrize(("dtype", "by_tokens"), [(torch.bfloat16, True), (torch.float16, False)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dim", _hopper.DIMS)
def test_gradients_are_exact_each_time_however_heads_are_split(
    monkeypatch, dim, shape, dtype, by_tokens
):
    batch, length, number, groups, _, causal, keys, window = (*shape, None)[:8]
    heads_per_group = number // groups
    monkeypatch.setattr(_hopper, "takes_backward", lambda *_: True)
    torch.manual_seed(0)
    q, dout = (heads(batch, length, number, dim, dtype, by_tokens) for _ in range(2))
    k, v = (heads(batch, keys, groups, dim, dtype, by_tokens) for _ in range(2))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = torch.autograd.grad(exact(*leaves, causal, window)[0], leaves, dout.double())
    out, lse = _flash._forward(q, k, v, causal, window, dim**-0.5, None, True)
    least = next(
        (n for n in range(2, heads_per_group) if heads_per_group % n == 0), heads_per_group
    )
    for split in {1, least, heads_per_group}:
        monkeypatch.setattr(_hopper, "_split", lambda *_, split=split: split)
        replay.forget()
        first = None
        for _ in range(replay.BEFORE + 3):
            poison = torch.full((1 << 24,), math.nan, device="cuda")
            del poison
            got = _flash._backward(dout, q, k, v, out, lse, None, causal, window, dim**-0.5)
            for x, y in zip(got, wanted, strict=True):
                error = (x.double() - y).abs().max()
                assert error <= 4 * ROUNDING[dtype] * y.abs().max() + FP32
            first = first or got
            assert all(torch.equal(x, y) for x, y in zip(got, first, strict=True))
    replay.forget()


@pytest.mark.parametrize("split", [1, 4])
def test_more_groups_than_65535_are_all_computed(monkeypatch, split):
    batch, length = (1 << 16) + 40, 20
    monkeypatch.setattr(_hopper, "_split", lambda *_: split)
    torch.manual_seed(0)
    q, dout = (heads(batch, length, 8, 128, torch.bfloat16, True) for _ in range(2))
    k, v = (heads(batch, length, 1, 128, torch.bfloat16, True) for _ in range(2))
    scale = 128**-0.5
    assert _hopper.takes(q, k, v, True, None, scale, None) and _hopper.takes_backward(
        q, k, True, None
    )
    out, lse = _flash._forward(q, k, v, True, None, scale, None, True)
    got = _flash._backward(dout, q, k, v, out, lse, None, True, None, scale)
    leaves = [x[-50:].double().requires_grad_() for x in (q, k, v)]
    wanted = torch.autograd.grad(exact(*leaves, True, None)[0], leaves, dout[-50:].double())
    for x, y in zip(got, wanted, strict=True):
        assert (x[-50:].double() - y).abs().max() <= 4 * ROUNDING[q.dtype] * y.abs().max() + FP32


def test_a_captured_pass_follows_its_inputs_to_the_last_bit():
    torch.manual_seed(0)
    q, dout = (heads(2, 333, 8, 128, torch.bfloat16, True) for _ in range(2))
    k, v = (heads(2, 333, 2, 128, torch.bfloat16, True) for _ in range(2))
    triton = OPS["attention"].implementations["triton"]
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def step():
        out = triton(q, k, v, True, None, None, None)
        return out, *torch.autograd.grad(out, leaves, dout)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(replay.BEFORE + 2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        with torch.no_grad():
            for x in (q, k, v, dout):
                x.normal_()
            for x in captured:
                x.fill_(math.nan)
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(captured, step(), strict=True))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_passes_take_these_kernels_and_give_the_same_to_the_last_bit(monkeypatch, mode):
    replay.forget()
    taken = []
    for name in ("forward", "backward"):
        own = getattr(_hopper, name)
        monkeypatch.setattr(
            _hopper, name, lambda *given, own=own, name=name: taken.append(name) or own(*given)
        )
    torch.manual_seed(0)
    leaves = [heads(2, 333, n, 128, torch.bfloat16, True).requires_grad_() for n in (8, 2, 2)]
    dout = heads(2, 333, 8, 128, torch.bfloat16, True)

    def call(q, k, v):
        return kernels.attention(q, k, v, window=100, backend="triton")

    def results(call):
        out = call(*leaves)
        grads = torch.autograd.grad(out, leaves, dout)
        return [x.detach().clone() for x in (out, *grads)]

    wanted = results(call)
    taken.clear()
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, mode=mode)
    for _ in range(replay.BEFORE + 3):
        torch.compiler.cudagraph_mark_step_begin()
        got = results(compiled)
        assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))
    assert {"forward", "backward"} == set(taken)
    torch._dynamo.reset()
    replay.forget()


def test_what_the_kernel_does_not_do_goes_to_the_one_for_every_gpu():
    q, k, v = (heads(1, 256, 4, 128, torch.bfloat16, True) for _ in range(3))
    taken = _hopper.takes(q, k, v, True, None, 0.1, None)
    assert taken and _hopper.takes(q, k, v, False, None, 0.1, None)
    few = torch.tensor(7, device="cuda")
    assert _hopper.takes(q, k, v, True, 64, 0.1, None)
    assert not _hopper.takes(q, k, v, False, 64, 0.1, None), "a window to both sides"
    assert not _hopper.takes(q, k, v, True, None, 0.1, few), "a cache that is filled in part"
    assert not _hopper.takes(q, k, v, True, None, -0.1, None), "the least score is the largest"
    assert not _hopper.takes(q[:, :, :20], k, v, True, None, 0.1, None), "few rows"
    assert not _hopper.takes(q, k[:, :, :128], v[:, :, :128], True, None, 0.1, None)
    assert not _hopper.takes(q.float(), k.float(), v.float(), True, None, 0.1, None)
    many = heads(1, 100, 12, 128, torch.bfloat16, True)
    assert not _hopper.takes(many, k, v, True, None, 0.1, None), "few rows, and 3 are not packed"
