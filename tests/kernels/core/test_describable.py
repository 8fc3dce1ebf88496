"""Tensors that kernels may read by descriptors."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from kernels.core import triton_helpers


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch):
    monkeypatch.setattr(triton_helpers, "_describes", lambda device: True)


def heads(tokens=6, heads=4, dim=8, dtype=torch.float16):
    return torch.empty(2, tokens, heads, dim, dtype=dtype).transpose(1, 2)


def test_rows_that_begin_at_multiples_of_16_bytes_are_describable():
    assert triton_helpers.describable(heads(), heads(dim=16))
    assert triton_helpers.describable(torch.nn.Parameter(heads()))
    assert triton_helpers.describable(heads(dim=4, dtype=torch.float32))


@pytest.mark.parametrize(
    "x",
    [
        heads(dim=12),
        heads()[..., 1:],
        torch.empty(200, dtype=torch.float16)[1:193].view(2, 4, 3, 8),
        heads().transpose(2, 3),
        heads(tokens=1).expand(-1, -1, 6, -1),
    ],
    ids=["rows of 24 bytes", "2 bytes behind", "memory 2 bytes behind", "columns apart", "one row"],
)
def test_others_are_not(x):
    assert not triton_helpers.describable(x)
    assert not triton_helpers.describable(heads(), x)


def test_tensors_without_memory_are_not():
    with FakeTensorMode():
        assert not triton_helpers.describable(heads())


def test_nothing_is_while_dynamo_traces():
    seen = []

    def traced(x):
        seen.append(triton_helpers.describable(x))
        return x + 1

    torch.compile(traced, backend="eager", fullgraph=False)(heads())
    assert seen and not any(seen)


def test_nothing_is_while_functions_are_transformed():
    seen = []
    torch.vmap(lambda x: (seen.append(triton_helpers.describable(x)), x)[1])(heads())
    assert seen == [False]
