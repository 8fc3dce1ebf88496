"""Marked calls: one eager call of what a variant computes, outside of all timing, to observe."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn.attention import SDPBackend
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.runner.profiling.eager import eager

if TYPE_CHECKING:
    from workbench.runner.batches import Batches
    from workbench.runner.interfaces import MarkedVariant
    from workbench.runner.workloads import Compute, Workload

_CONVOLUTIONS = frozenset(
    (
        *(torch.conv1d, torch.conv2d, torch.conv3d, torch.convolution),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    )
)
_PRODUCTS = _CONVOLUTIONS | frozenset(
    (
        *(linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.einsum),
        *(torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm, torch.addmm, torch.baddbmm),
    )
)
_MATRIX_PRODUCTS = frozenset(
    (
        *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear"),
        *("_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_int_mm", "_trilinear"),
    )
)
_KINDS = {"convolution": "convolution", "_attention": "attention", "_rnn": "recurrent layer"}
_CHECKED = 64  # rows and columns of a product, which are computed again in FP64


def call(variant: MarkedVariant, *, backward: bool = False) -> None:
    """Compute what a step does, uncompiled, up to its loss; the variant must be entered.

    ``backward``: and in training its gradients, which are not kept. Shards of weights are gathered
    by all ranks together.
    """
    workload = variant.situation.workload
    # The call moves the cache one token further than the steps did.
    with variant.restored_round(), eager(), torch.set_grad_enabled(workload.trains):
        out = None if variant.divided is None else variant.divided.joint_loss(variant)
        if out is None:
            # A graph of TorchScript calls no Python, which could be observed.
            compute = getattr(variant.compute, "unrecorded", variant.compute)
            out = computed(compute, workload, variant.batches)
        if workload.trains and backward:
            learned = [p for p in variant.model.parameters() if p.requires_grad]
            torch.autograd.grad(out, learned, allow_unused=True)


def computed(compute: Compute, workload: Workload, batches: Batches) -> Tensor:
    """Return what a workload's computation gives for the current batch: the loss, or outputs."""
    if workload.decodes:
        (tokens,) = batches.inputs
        position = torch.full((), tokens.shape[1], dtype=torch.int64, device=tokens.device)
        return compute(tokens[:, -1:].clone(), position)
    return compute(*batches.inputs, *(batches.targets if workload.trains else ()))


class AttentionChoices(TorchFunctionMode):
    """Which backend torch takes for each SDPA call inside, and which with other flags.

    ``otherwise`` sets the other flags and sets them back. ``refused``: why torch's fused kernels
    did not fit, once for each call that it left to its math; on a GPU alone.
    """

    def __init__(self, otherwise: Callable[[], Any]) -> None:
        super().__init__()
        self._otherwise = otherwise
        self.chosen: Counter[tuple[str, str]] = Counter()  # (as it is, otherwise)
        self.refused: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at the call, and make it."""
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            chosen = _choice(*args, **kwargs)
            if chosen == "math":
                self.refused += _refusals(*args, **kwargs)
            with self._otherwise():
                self.chosen[chosen, _choice(*args, **kwargs)] += 1
        return func(*args, **kwargs)


def _choice(*args: Any, **kwargs: Any) -> str:
    backend = SDPBackend(torch._fused_sdp_choice(*args, **kwargs))
    return str(backend.name).lower().removesuffix("_attention").replace("_", " ")


def _refusals(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> list[str]:
    """Return torch's warnings when it is asked if its fused kernels can compute a call."""
    if not q.is_cuda:
        return []
    parameters = cuda.SDPAParams(q, k, v, attn_mask, dropout_p, is_causal, enable_gqa)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cuda.can_use_flash_attention(parameters, True)
        cuda.can_use_efficient_attention(parameters, True)
    return [str(warning.message).partition(" (Triggered")[0].rstrip(". ") for warning in caught]


class Convolutions(TorchFunctionMode):
    """The library that each convolution inside runs in."""

    def __init__(self) -> None:
        super().__init__()
        self.libraries: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at the call, and make it."""
        if func not in _CONVOLUTIONS:
            return func(*args, **(kwargs or {}))
        with _Canonical(self.libraries):
            return func(*args, **(kwargs or {}))


class _Canonical(TorchDispatchMode):
    """Sees a convolution as the one operator that all of them become."""

    def __init__(self, libraries: Counter[str]) -> None:
        super().__init__()
        self._libraries = libraries

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.convolution.default:
            x, weight, bias, *settings = args
            sizes = None if bias is None else list(bias.shape)
            backend = torch._C._select_conv_backend(x, weight, bias, *settings, sizes)
            self._libraries[backend.name] += 1
        return func(*args, **(kwargs or {}))


class Products(TorchFunctionMode):
    """The error of each FP32 product and convolution inside, relative to FP64.

    ``errors`` has one entry per call, by the name of the product. Products inside another function
    (attention, or a separate kernel) are not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[float]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at the call, and make it."""
        if func not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        with _Errors(self.errors):
            return func(*args, **(kwargs or {}))


class _Errors(TorchDispatchMode):
    """Sees products as the few operators that all of them become."""

    def __init__(self, errors: dict[str, list[float]]) -> None:
        super().__init__()
        self._errors = errors

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        exact = _EXACT.get(func)
        if exact is None or out.dtype != torch.float32 or not out.numel() or kwargs:
            return out
        expected, got = exact(out, *args)
        size = float(expected.norm())
        if size:
            name = "convolution" if func is torch.ops.aten.convolution.default else "matrix product"
            self._errors.setdefault(name, []).append(float((got.double() - expected).norm()) / size)
        return out


class ProductDtypes(TorchDispatchMode):
    """The number format of each product inside, below autocast, for any caller.

    ``seen`` counts them by kind and dtype. A product in a kernel that is no operator of torch is
    not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, torch.dtype]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        kind = _kind(func.overloadpacket.__name__)
        first = out[0] if isinstance(out, tuple | list) and out else out
        if kind and isinstance(first, Tensor):
            self.seen[kind, first.dtype] += 1
        return out


def _kind(operator: str) -> str:
    """Return the kind of product of an aten operator; empty if it is none."""
    if operator in _MATRIX_PRODUCTS:
        return "matrix product"
    return next((kind for part, kind in _KINDS.items() if part in operator), "")


def _product(out: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return a corner of a product, or of the first in a batch: in FP64, and as it came out."""
    if out.dim() == 3:
        out, left, right = out[0], left[0], right[0]
    corner = left[:_CHECKED].double() @ right[:, :_CHECKED].double()
    return corner, out[:_CHECKED, :_CHECKED]


def _sum(out: Tensor, bias: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same of a product to which something is added."""
    added = bias.expand_as(out)
    corner, got = _product(out, left, right)
    return corner + (added[0] if out.dim() == 3 else added)[:_CHECKED, :_CHECKED], got


def _convolution(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any
) -> tuple[Tensor, Tensor]:
    """Return the first of a batch."""
    wide = None if bias is None else bias.double()
    return torch.convolution(x[:1].double(), weight.double(), wide, *settings), out[:1]


_EXACT: dict[Any, Callable[..., tuple[Tensor, Tensor]]] = {
    torch.ops.aten.mm.default: _product,
    torch.ops.aten.bmm.default: _product,
    torch.ops.aten.addmm.default: _sum,
    torch.ops.aten.baddbmm.default: _sum,
    torch.ops.aten.convolution.default: _convolution,
}
