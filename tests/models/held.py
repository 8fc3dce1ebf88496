"""What a training step would hold on a GPU at most, counted on a CPU and without computing.

Tensors are fake: they have sizes and no numbers, so that any preset fits. Triton's kernels are not
launched, which leaves what matters here: what their callers allocate and keep for the backward
pass. Where torch's own operators keep more on a CPU than on a GPU, stand-ins keep as much.
Allocations are whole tensors: the allocator's rounding and what libraries take are not counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kernels
from kernels import _dispatch, _triton, hardware
from models import Family

H200 = {"sm_count": 132, "total_bytes": 141 << 30}


class Meter(TorchDispatchMode):
    """Counts the bytes of all storages that were made within it and live, and their most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()
        self.watch = None
        self.live = {}
        self.at_peak = {}
        self.trace = False
        self.where = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, Tensor):
                self._take(one.untyped_storage(), func)
        return found

    def _take(self, storage, func):
        key = id(storage)
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.now += size
        if self.trace:
            stack = [
                f"{f.filename.split('/')[-1]}:{f.lineno}"
                for f in traceback.extract_stack()
                if "/footprint/" in f.filename and "held.py" not in f.filename
            ]
            self.live[key] = (size, str(func), " < ".join(reversed(stack[-3:])))
        weakref.finalize(storage, self._give, key, size)
        if self.now > self.most:
            self.most = self.now
            if self.trace:
                self.at_peak = dict(self.live)
                self.where = str(func)

    def _give(self, key, size):
        self._known.discard(key)
        self.now -= size
        self.live.pop(key, None)


class Norm(torch.autograd.Function):
    """A norm that keeps for its backward pass what a GPU's keeps."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, dy):
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight), None


class Flash(torch.autograd.Function):
    """Attention that keeps what a flash kernel keeps: its inputs, its output, the log-sum-exp."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:3], dtype=torch.float32))
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx, dy):
        q, k, v, _, _ = ctx.saved_tensors
        return tuple(torch.empty_like(x) for x in (q, k, v))


def _flash(q, k, v, mask=None, *, is_causal=False, scale=None, enable_gqa=False):
    assert mask is None
    return Flash.apply(q, k, v)


@contextlib.contextmanager
def as_on_an_h200() -> Iterator[None]:
    """Operators choose, allocate and keep as there, and nothing is launched."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    caches = (
        _dispatch._candidates_once,
        _dispatch._missing_once,
        sys.modules["kernels.fourier_mix"]._matrix_once,
    )
    known = dataclasses.replace(hardware.of("cpu"), **H200)
    with pytest.MonkeyPatch.context() as patch:
        for kind in (JITFunction, Autotuner, Heuristics):
            patch.setattr(kind, "run", lambda *args, **more: None)
        patch.setattr(_triton, "INTERPRETED", True)
        patch.setattr(hardware, "_cpu", lambda: known)
        # By its module: ``kernels.attention`` is the operator.
        patch.setattr(
            sys.modules["kernels.attention._sdpa"], "scaled_dot_product_attention", _flash
        )
        patch.setattr(
            functional, "rms_norm", lambda x, shape, weight, eps: Norm.apply(x, weight, eps)
        )
        # Chosen as on a GPU, where it is no other than the family's.
        adaptive = sys.modules["kernels.adaptive_attention"]
        attention = adaptive.attention
        patch.setattr(
            adaptive, "attention", lambda *args, backend, **more: attention(*args, **more)
        )
        for cache in caches:
            cache.cache_clear()
        try:
            yield
        finally:
            for cache in caches:
                cache.cache_clear()


def batch_of(family: Family, config: Any, batch: int, sequence: int, dtype: torch.dtype):
    if family.draw is None:
        tokens_BS = torch.zeros(batch, sequence, dtype=torch.int64)
        return tokens_BS, tokens_BS
    inputs, targets = family.draw(config, batch, sequence, torch.Generator().manual_seed(0))
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    return *inputs, *targets


def held_by_training(
    family,
    config,
    *,
    batch,
    sequence,
    precision="fp32",
    checkpointing="none",
    fused=True,
    trace=False,
    optimizer="fused",
) -> Meter:
    """Two steps' meter."""
    dtype = torch.bfloat16 if precision == "half" else torch.float32
    choices = {"all": "triton" if fused else "torch", "attention": "sdpa"}
    if family.name == "mahia":
        choices["fourier_mix"] = "matmul"
    meter = Meter()
    model = family.build(config, dtype=dtype).train()
    inputs = batch_of(family, config, batch, sequence, dtype)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with as_on_an_h200(), kernels.using(**choices), fake, meter:
        inputs = [torch.empty_like(x) for x in inputs]
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(torch.empty(parameter.shape, dtype=dtype)))
            if hasattr(module, "rebuild_buffers"):
                module.rebuild_buffers(torch.device("cpu"))
        model.set_checkpointing(checkpointing)
        adamw = torch.optim.AdamW(
            model.parameters(),
            **{"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}[
                optimizer
            ],
        )
        for number in range(2):
            adamw.zero_grad(set_to_none=True)
            if number:
                meter.most = 0
                meter.trace = trace
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"):
                loss = model.loss(*inputs)
            meter.at_loss = meter.now
            loss.backward()
            meter.after_backward = meter.now
            meter.peak_backward = meter.most
            adamw.step()
    return meter
