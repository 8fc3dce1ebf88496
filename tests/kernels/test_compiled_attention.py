"""Attention's own kernels under torch.compile: a graph holds them as operators of torch."""

import pytest
import torch
from subjects import DEVICE, HALVES, implementations

import kernels
from kernels import OPS

pytestmark = pytest.mark.skipif(
    "triton" not in implementations(OPS["attention"]),
    reason="on CPUs these run in the interpreter, by test_interpreted_kernels.py",
)
MASKS = [(True, None), (True, 7), (False, None)]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def attention(causal, window, kv_length=None):
    def call(q, k, v):
        return kernels.attention(
            q, k, v, causal=causal, window=window, kv_length=kv_length, backend="triton"
        )

    return call


def heads(tokens, number, dim=16, dtype=HALVES[0]):
    """As a projection leaves them: tokens before heads in memory."""
    made = torch.randn(2, tokens, number, dim, device=DEVICE, dtype=dtype).transpose(1, 2)
    return made.requires_grad_()


def results(call, leaves):
    out = call(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))


@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_compiled_passes_are_eager_ones_to_the_last_bit_at_every_length(causal, window):
    torch.manual_seed(0)
    call = attention(causal, window)
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for tokens in (50, 33, 70):
        leaves = heads(tokens, 4), heads(tokens, 2), heads(tokens, 2)
        for one, other in zip(results(compiled, leaves), results(call, leaves), strict=True):
            assert one.stride() == other.stride()
            assert torch.equal(one, other)
        with torch.no_grad():
            assert torch.equal(compiled(*leaves), call(*leaves))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2, "one of them records"


def test_compiled_decoding_follows_how_much_of_its_cache_is_filled():
    torch.manual_seed(0)
    filled = torch.tensor([3, 9], device=DEVICE)
    call = attention(True, None, filled)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    q, k, v = heads(1, 4), heads(12, 2), heads(12, 2)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(q, k, v), call(q, k, v))
            filled += 1


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_what_is_said_of_the_operators_is_what_they_do(causal, window, keep):
    """Schema, and sizes, strides and dtypes of results without memory."""
    torch.manual_seed(0)
    q, k, v = (x.detach() for x in (heads(9, 4), heads(9, 2), heads(9, 2)))
    ops, last = torch.ops.workbench, (causal, window, 0.25)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.attention_forward, (q, k, v, *last, None, keep), test_utils=tests)
    if keep:
        out, lse = ops.attention_forward(q, k, v, *last, None, True)
        given = (torch.randn_like(out), q, k, v, out, lse, None, *last)
        torch.library.opcheck(ops.attention_backward, given, test_utils=tests)
