"""Fusion of the last linear layer with the cross entropy of its outputs.

While the loss is computed the layer returns its input and its weight in place of logits. Slices,
reshapes and casts of these stay so. Cross entropy of them is the operator; anything else computes
the logits first, so that every model and loss stays right. Logits that an operation changes in
place are a tensor from then on.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import kernels
from kernels.core.operator import autocast_dtype
from workbench.runner.foreign.patches import Patch, function_of


class Logits:
    """Logits that were not computed: ``hidden`` times the transposed ``weight``."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        is_wide: bool = False,
        uses: list[str] | None = None,
    ) -> None:
        self.hidden = hidden
        self.weight = weight
        self.is_wide = is_wide  # cast to FP32
        # Names of operations that used these logits or parts of them in an autograd graph.
        self.uses: list[str] = [] if uses is None else uses
        self._tensor: Tensor | None = None  # the logits, once an operation needed them
        self._version = 0  # version counter of the tensor when it was computed

    @property
    def shape(self) -> torch.Size:
        """Shape of the logits."""
        return torch.Size([*self.hidden.shape[:-1], self.weight.shape[0]])

    @property
    def ndim(self) -> int:
        """Number of dimensions of the logits."""
        return self.hidden.ndim

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the logits."""
        dtype = autocast_dtype(self.hidden) or self.hidden.dtype
        return torch.promote_types(dtype, torch.float32) if self.is_wide else dtype

    @property
    def device(self) -> torch.device:
        """Device of the logits."""
        return self.hidden.device

    @property
    def requires_grad(self) -> bool:
        """True if the logits are differentiated."""
        needed = self.hidden.requires_grad or self.weight.requires_grad
        return needed and torch.is_grad_enabled()

    @property
    def is_changed(self) -> bool:
        """True if an operation changed the logits in place."""
        return self._tensor is not None and self._tensor._version != self._version

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one dimension of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.hidden.ndim

    def float(self) -> Any:
        """Return the logits in FP32: the operator computes in FP32 at least."""
        if self.is_changed:
            return self.computed().float()
        return Logits(self.hidden, self.weight, True, self.uses)

    def contiguous(self) -> Any:
        """Return the same."""
        return self.computed().contiguous() if self.is_changed else self

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Flatten dimensions before the last one."""
        last = end_dim % self.ndim
        if last == self.ndim - 1 or self.is_changed:
            return self.computed().flatten(start_dim, end_dim)
        return self._rows(self.hidden.flatten(start_dim, last))

    def view(self, *shape: Any) -> Any:
        """Reshape dimensions before the last one."""
        return self.reshape(*shape)

    def reshape(self, *shape: Any) -> Any:
        """Reshape dimensions before the last one."""
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        *lead, last = sizes
        count = self.hidden.shape[:-1].numel()
        keeps_words = last == self.weight.shape[0] and lead.count(-1) == 1
        keeps_words |= last in (-1, self.weight.shape[0]) and math.prod(lead) == count
        if not keeps_words or self.is_changed:
            return self.computed().reshape(sizes)
        return self._rows(self.hidden.reshape(*lead, self.hidden.shape[-1]))

    def __getitem__(self, index: Any) -> Any:
        """Take slices of the dimensions before the last one."""
        parts = index if isinstance(index, tuple) else (index,)
        slices = [part for part in parts if isinstance(part, slice)]
        head = slices[: self.ndim - 1]
        if self.is_changed:
            return self.computed()[index]
        if len(slices) == len(parts) <= self.ndim and slices[self.ndim - 1 :] in ([], [_ALL]):
            return self._rows(self.hidden[tuple(head)])
        if len(parts) > 1 and parts[0] is Ellipsis and len(slices) == len(parts) - 1:
            lead = (_ALL,) * (self.ndim - len(slices))
            return self[(*lead, *slices)]
        return self.computed()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Change some of the logits."""
        self.computed()[index] = _plain(value)

    def __len__(self) -> int:
        """Return the first dimension."""
        return self.shape[0]

    def computed(self) -> Tensor:
        """Return the logits, as the same tensor each time.

        If they were computed without an autograd graph, they are computed again when one is needed.
        """
        tensor = self._tensor
        if tensor is None or (self.requires_grad and not tensor.requires_grad):
            tensor = nn.functional.linear(self.hidden, self.weight)
            tensor = tensor.to(torch.promote_types(tensor.dtype, self.dtype))
            self._tensor, self._version = tensor, tensor._version
        if torch.is_grad_enabled():
            self.uses.append("computed")
        return tensor

    def _rows(self, hidden: Tensor) -> Logits:
        """Return the logits of these rows."""
        return Logits(hidden, self.weight, self.is_wide, self.uses)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the logits themselves."""
        if name.startswith("__") or name in ("hidden", "weight", "_tensor"):
            raise AttributeError(name)
        return getattr(self.computed(), name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute cross entropy by the operator, and everything else from the logits."""
        kwargs = kwargs or {}
        if func is nn.functional.cross_entropy and (value := _fused(*args, **kwargs)) is not None:
            return value
        return func(*_plain(args), **_plain(kwargs))


_ALL = slice(None)


def _plain(values: Any) -> Any:
    """Return the values, also nested ones, with logits that were computed."""
    return tree_map(lambda x: x.computed() if isinstance(x, Logits) else x, values)


def _binary(name: str) -> Callable[..., Any]:
    def compute(self: Logits, *operands: Any) -> Any:
        return getattr(self.computed(), name)(*_plain(operands))

    return compute


_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv mod pow rpow matmul rmatmul neg abs "
    "eq ne lt le gt ge"
)
for _name in _OPERATORS.split():
    setattr(Logits, f"__{_name}__", _binary(f"__{_name}__"))


def _fused(
    logits: Any,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """Return the loss by the operator; None if it cannot compute it."""
    if not isinstance(logits, Logits) or logits.is_changed:
        return None
    plain = weight is None and size_average is None and reduce is None and not label_smoothing
    is_index = not target.is_floating_point() and target.dim() == logits.ndim - 1
    if not plain or not is_index or logits.ndim != 2 or reduction not in ("mean", "sum"):
        return None
    logits.uses.append("fused")
    loss: Tensor = kernels.linear_cross_entropy(
        logits.hidden, logits.weight, target, ignore_index=ignore_index, reduction=reduction
    )
    return loss


def patch_loss(model: Any) -> Patch:
    """Let the model's loss fuse its last linear layer with cross entropy.

    ``model`` has the user's ``module`` and a method ``loss``. Autograd does not see logits that are
    no tensors. If only a ``torch.autograd.Function`` uses them, they are tensors from then on.
    """
    patch = Patch()
    head = _head(model.module)
    original = function_of(model, "loss")
    if head is None or original is None:
        return patch
    path, layer = head
    is_active, is_seen = [False], [True]  # while the loss is computed; by autograd
    made: list[Logits] = []

    def forward(self: nn.Linear, input: Tensor) -> Any:
        if not is_active[0]:
            return inner(self, input)
        made.append(Logits(input, self.weight))
        return made[-1]

    def loss(self: Any, *batch: Any) -> Tensor:
        is_active[0] = is_seen[0]
        made.clear()
        try:
            value = original(self, *batch)
        finally:
            is_active[0] = False
        if torch.is_grad_enabled() and not all(logits.uses for logits in made):
            is_seen[0] = False
            value = original(self, *batch)
        made.clear()
        return value

    inner = nn.Linear.forward
    patch.replace_method(path, layer, "forward", forward)
    patch.set_attribute(vars(model), "loss", types.MethodType(loss, model))
    return patch


def _head(module: nn.Module) -> tuple[str, nn.Linear] | None:
    """Return the output layer: the one that transformers names, else the only widest one."""
    linears = [
        (path, layer)
        for path, layer in module.named_modules()
        if type(layer) is nn.Linear and layer.bias is None and "forward" not in vars(layer)
    ]
    named = getattr(module, "get_output_embeddings", None)
    if callable(named):
        return next((pair for pair in linears if pair[1] is named()), None)
    widest = max((layer.out_features for _, layer in linears), default=0)
    heads = [pair for pair in linears if pair[1].out_features == widest]
    return heads[0] if len(heads) == 1 else None
