"""Peak memory of a step as on an H200, counted on a CPU and without computing.

Tensors are fake: they have sizes and no numbers, so that any preset fits. Triton's kernels are not
launched; what matters here is what their callers allocate and save for the backward pass. Where
torch's own operators save more on a CPU than on a GPU, stand-ins save as much as there. The count
is of complete tensors, without the allocator's rounding and without what libraries allocate for
themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

import kernels
from kernels import hardware
from kernels.core import dispatch, triton_helpers
from models import Family
from models.layers.fake_quantized import fake_quantize
from models.parallel.tensor_parallel_plan import divide
from workbench.runner.distributed.collectives import AcrossRanks, AlongSequence
from workbench.runner.variants import offload
from workbench.runner.variants.offload import Offload

FORMATS = [pytest.param("fp32", marks=pytest.mark.slow), "amp"]
SDPA = "scaled_dot_product_attention"


class Meter(TorchDispatchMode):
    """Count of the bytes of live storages that operators made inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._live: set[int] = set()
        self.shapes: set[torch.Size] = set()  # of the parameters

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.add.Tensor and self._adds_gradients(*args):
            func = torch.ops.aten.add_.Tensor
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self._add_allocation(leaf.untyped_storage())
        return result

    def _adds_gradients(self, x: Tensor, y: Any) -> bool:
        """Return True for gradients of one parameter, which autograd adds in place.

        It does not for tensors of a subclass, such as fake ones.
        """
        if torch.is_grad_enabled() or x.shape not in self.shapes:
            return False
        return isinstance(y, Tensor) and x.shape == y.shape

    def _add_allocation(self, storage: torch.UntypedStorage) -> None:
        if id(storage) in self._live:
            return
        self._live.add(id(storage))
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._give, id(storage), storage.nbytes())

    def _give(self, storage: int, size: int) -> None:
        self._live.remove(storage)
        self.now -= size


class Norm(torch.autograd.Function):
    """Norm that saves for its backward pass what a GPU's norm saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class Flash(torch.autograd.Function):
    """Attention that saves what a flash kernel saves: inputs, output, log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format)
        ctx.save_for_backward(q, k, v, y, q.new_empty(q.shape[:3], dtype=torch.float32))
        return y.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


class HostTensor:
    """Stand-in for a tensor that was moved to the host, whose memory is not counted."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = torch.empty_like(tensor, device="meta")
        self._fetched: weakref.ref[Tensor] | None = None

    def fetch(self) -> Tensor:
        """Return a tensor of the same size; the same object while it is referenced."""
        fetched = None if self._fetched is None else self._fetched()
        if fetched is None:
            fetched = torch.empty_like(self._host, device="cpu")
            self._fetched = weakref.ref(fetched)
        return fetched


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **more: Any) -> Tensor:
    """Replace torch's attention, unless its own arithmetic was requested."""
    if not torch.backends.cuda.flash_sdp_enabled():
        return functional.scaled_dot_product_attention(q, k, v, mask, **more)
    assert mask is None
    return Flash.apply(q, k, v)


@contextlib.contextmanager
def as_on_an_h200() -> Iterator[None]:
    """Let operators choose, allocate and save as there; nothing is launched or computed."""
    cached = (
        dispatch._candidates_once,
        dispatch._missing_once,
        sys.modules["kernels.fourier_mix"]._matrix_once,
    )
    known = dataclasses.replace(hardware.of("cpu"), sm_count=132, total_bytes=141 << 30)
    # By its module: ``kernels.attention`` is the operator.
    adaptive = sys.modules["kernels.adaptive_attention"]
    experts = sys.modules["kernels.moe_experts._plain"]
    attention = adaptive.attention

    def attention_of_its_choice(*args: Any, backend: str | None, **more: Any) -> Tensor:
        return attention(*args, **more)

    with pytest.MonkeyPatch.context() as patch:
        for kind in (JITFunction, Autotuner, Heuristics):
            patch.setattr(kind, "run", lambda *args, **more: None)
        patch.setattr(
            triton_helpers, "INTERPRETED", True
        )  # Triton exists, also for a CPU's tensors
        patch.setattr(hardware, "_cpu", lambda: known)
        patch.setattr(sys.modules["kernels.attention._sdpa"], SDPA, flash)
        patch.setattr(adaptive, "attention", attention_of_its_choice)
        # What PyTorch runs there: its grouped product in BF16, padded blocks otherwise.
        patch.setattr(experts, "_on_host", lambda x: False)
        patch.setattr(experts, "_has_one_kernel", lambda: True)
        patch.setattr(offload, "_HostTensor", HostTensor)
        # Fake tensors have no address.
        patch.setattr(torch.UntypedStorage, "data_ptr", lambda storage: storage._cdata)
        patch.setattr(functional, "rms_norm", lambda x, _, weight, eps: Norm.apply(x, weight))
        for cached_function in cached:
            cached_function.cache_clear()
        try:
            yield
        finally:
            for cached_function in cached:
                cached_function.cache_clear()


def training_peak(
    family: Family,
    config: Any,
    *,
    batch: int,
    sequence: int,
    precision: str,
    checkpointing: str = "none",
    fused: bool = True,
    attention: str = "",
    ranks: int = 1,
    along_sequence: bool = False,
    loss: str = "",
    update: str = "fused",
    offloaded: bool = False,
    rounded: bool = False,
    divide_model: Callable[[nn.Module], None] | None = None,
) -> int:
    """Return the peak bytes of a training step with AdamW, its moments made before.

    The arguments are those of the family's footprint. With ``ranks`` that shard the layers it is
    the first rank's peak; its sums over the ranks are as large as theirs. ``divide_model`` makes
    the model that of a rank in another way.
    """
    model = family.build(config, dtype=_dtype(precision)).train()
    if ranks > 1:
        region = AlongSequence(ranks) if along_sequence else AcrossRanks()
        divide(model, ranks, region)
        if along_sequence:
            model.stream = region
    model.share_rope_cache(False)
    model.set_checkpointing(checkpointing)
    if loss:
        model.set_fused_loss(True)
    if rounded:
        fake_quantize(model)
    if divide_model is not None:
        divide_model(model)
    step = batch, sequence, precision, fused, attention
    with (
        _metered(family, config, model, *step) as (meter, inputs),
        kernels.using(linear_cross_entropy=loss or "torch"),
    ):
        compute = Offload(model.loss, model.parameters()) if offloaded else model.loss
        how = {"fused": update == "fused", "foreach": update == "foreach"}
        optimizer = torch.optim.AdamW(model.parameters(), **how)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        meter.most = meter.now
        with _amp(precision):
            result = compute(*inputs)
        result.backward()
        optimizer.step()
    return meter.most


def inference_peak(
    family: Family,
    config: Any,
    *,
    workload: str,
    batch: int,
    sequence: int,
    precision: str,
    fused: bool = True,
    attention: str = "",
) -> int:
    """Return the peak bytes of a forward pass or of a prefill, its cache made before."""
    model = family.build(config, dtype=_dtype(precision)).eval()
    model.share_rope_cache(False)
    metered = _metered(family, config, model, batch, sequence, precision, fused, attention)
    with metered as (meter, inputs), _amp(precision), torch.no_grad():
        if workload == "prefill":
            model(inputs[0], cache=model.new_cache(batch, sequence), last_only=True)
        else:
            model(*inputs[:-1])
    return meter.most


def estimate_and_peak(
    family: Family, config: Any, workload: str = "train", **step: Any
) -> tuple[int, int]:
    """Return the footprint's total bytes and the counted peak; ``step`` as of the footprint."""
    with as_on_an_h200():
        estimate = family.footprint(config, workload=workload, **step).total
    if workload == "train":
        peak = training_peak(family, config, **step)
    else:
        peak = inference_peak(family, config, workload=workload, **step)
    print(family.name, workload, step, peak, f"{estimate / peak - 1:+.1%}")
    return estimate, peak


@contextlib.contextmanager
def _metered(
    family: Family,
    config: Any,
    model: nn.Module,
    batch: int,
    sequence: int,
    precision: str,
    fused: bool,
    attention: str,
) -> Iterator[tuple[Meter, list[Tensor]]]:
    """Count what is held from here on, with the model and its inputs; all as on an H200."""
    implementations = {"all": "triton" if fused else "torch"}
    implementations["attention"] = attention or "sdpa"
    if family.name == "mahia":
        implementations["fourier_mix"] = "matmul"  # auto's choice on a GPU
    dtype, meter = _dtype(precision), Meter()
    given = drawn(family, config, batch, sequence, dtype)
    with as_on_an_h200(), kernels.using(**implementations), FakeTensorMode(), meter:
        _fill(model, dtype)
        meter.shapes = {parameter.shape for parameter in model.parameters()}
        yield meter, [torch.empty(x.shape, dtype=x.dtype) for x in given]


def _dtype(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "half" else torch.float32


def _amp(precision: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp")


def saved_for_backward(
    family: Family,
    config: Any,
    precision: str,
    checkpointing: str,
    tokens_BS: Tensor,
    backend: str | None = None,
) -> int:
    """Return the bytes that autograd saves in a forward pass, without weights and buffers.

    ``backend`` is torch.compile's; None: not compiled.
    """
    model = family.materialise(config, dtype=_dtype(precision))
    model.set_checkpointing(checkpointing)
    own = {w.untyped_storage().data_ptr() for w in (*model.parameters(), *model.buffers())}
    saved = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    run = torch.compile(model, backend=backend, fullgraph=True) if backend else model
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), _amp(precision):
        run(tokens_BS)
    return sum(size for size, _ in saved.values())


def saved_more_on_a_cpu(dim: int, precision: str) -> int:
    """Return the bytes per token that a block's torch norms and attention save more than on a GPU.

    These are the norms' inputs and results in FP32, where a GPU saves the input alone, and the
    attention's output in a second layout.
    """
    compute, stream = {"fp32": (4, 4), "amp": (2, 4), "half": (2, 2)}[precision]
    return dim * (2 * 4 + 2 * (4 - stream) + compute)


def drawn(
    family: Family, config: Any, batch: int, sequence: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Draw inputs and targets of one step."""
    if family.draw is None:
        tokens_BS = torch.zeros(batch, sequence, dtype=torch.int64)
        return tokens_BS, tokens_BS
    inputs, targets = family.draw(config, batch, sequence, torch.Generator().manual_seed(0))
    return *(x.to(dtype) if x.is_floating_point() else x for x in inputs), *targets


def _fill(model: nn.Module, dtype: torch.dtype) -> None:
    """Give a model of the meta device parameters and buffers that are counted."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.empty(parameter.shape, dtype=dtype)))
        if hasattr(module, "rebuild_buffers"):
            module.rebuild_buffers(torch.device("cpu"))
