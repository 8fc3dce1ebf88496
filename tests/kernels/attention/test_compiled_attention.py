"""Attention's own kernels as torch operators: in a graph, and seen by dispatch modes."""

import functools

import pytest
import torch
from subjects import DEVICE, HALVES, implementations
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels import OPS
from kernels.attention import _flash
from models.execution import checkpointing

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
    """Draw heads as a projection leaves them: tokens before heads in memory."""
    made = torch.randn(2, tokens, number, dim, device=DEVICE, dtype=dtype).transpose(1, 2)
    return made.requires_grad_()


def results(call, leaves):
    out = call(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))


@pytest.mark.parametrize(
    ("causal", "window"),
    [MASKS[0], *(pytest.param(*mask, marks=pytest.mark.slow) for mask in MASKS[1:])],
)
def test_compiled_passes_are_eager_ones_to_the_last_bit_at_every_length(causal, window):
    torch.manual_seed(0)
    call = attention(causal, window)
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for tokens in (50, 33, 70):
        leaves = heads(tokens, 4), heads(tokens, 2), heads(tokens, 2)
        for first, other in zip(results(compiled, leaves), results(call, leaves), strict=True):
            assert first.stride() == other.stride()
            assert torch.equal(first, other)
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


class Seen(TorchDispatchMode):
    """Names of our operators that run inside it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "workbench":
            self.names.append(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))


def test_passes_are_operators_for_who_asks_and_give_the_same_numbers():
    torch.manual_seed(0)
    leaves = heads(33, 4), heads(33, 2), heads(33, 2)
    call = attention(True, None)
    with Seen() as alone:
        expected = results(call, leaves)
    with Seen() as requested, kernels.as_operators():
        actual = results(call, leaves)
    assert alone.names == [] and requested.names == ["attention_forward", "attention_backward"]
    assert all(map(torch.equal, actual, expected))


def test_a_checkpoint_by_operator_does_not_attend_again(monkeypatch):
    torch.manual_seed(0)
    leaves = heads(33, 4), heads(33, 2), heads(33, 2)
    call = attention(True, None)
    expected = results(call, leaves)
    computed, passes = _flash._forward, []

    def counted(*given):
        passes.append(given)
        return computed(*given)

    monkeypatch.setattr(_flash, "_forward", counted)
    for mode, forward_passes in (("full", 2), ("operators", 1)):
        passes.clear()
        checkpointing.reset_kept_operators()
        recomputed = functools.partial(checkpointing.recomputed, mode, call)
        actual = results(recomputed, leaves)
        assert all(map(torch.equal, actual, expected))
        assert len(passes) == forward_passes
    assert checkpointing.kept_operators() == {"attention_forward": 1}
