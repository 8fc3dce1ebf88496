"""Fusion of the last linear layer with the cross entropy of its outputs.

While the loss is computed the layer returns its input and its weight in place of logits. Slices,
reshapes and casts of these stay so. Cross entropy of them is the operator; anything else computes
the logits first, so that every model and loss stays right.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from workbench.runner.foreign.patches import Patch, function_of


class Logits:
    """Logits that were not computed: ``hidden`` times the transposed ``weight``."""

    def __init__(self, hidden: Tensor, weight: Tensor) -> None:
        self.hidden = hidden
        self.weight = weight

    @property
    def shape(self) -> torch.Size:
        """Shape of the logits."""
        return torch.Size([*self.hidden.shape[:-1], self.weight.shape[0]])

    @property
    def ndim(self) -> int:
        """Number of dimensions of the logits."""
        return self.hidden.ndim

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one dimension of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.hidden.ndim

    def float(self) -> Logits:
        """Return the same: the operator computes in FP32 at least."""
        return self

    def contiguous(self) -> Logits:
        """Return the same."""
        return self

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Flatten dimensions before the last one."""
        last = end_dim % self.ndim
        if last == self.ndim - 1:
            return self.computed().flatten(start_dim, end_dim)
        return Logits(self.hidden.flatten(start_dim, last), self.weight)

    def view(self, *shape: Any) -> Any:
        """Reshape dimensions before the last one."""
        return self.reshape(*shape)

    def reshape(self, *shape: Any) -> Any:
        """Reshape dimensions before the last one."""
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if sizes[-1] == self.weight.shape[0] or (sizes[-1] == -1 and -1 not in sizes[:-1]):
            reshaped = self.hidden.reshape(*sizes[:-1], self.hidden.shape[-1])
            if reshaped.shape[:-1].numel() == self.hidden.shape[:-1].numel():
                return Logits(reshaped, self.weight)
        return self.computed().reshape(sizes)

    def __getitem__(self, index: Any) -> Any:
        """Take slices of the dimensions before the last one."""
        parts = index if isinstance(index, tuple) else (index,)
        slices = [part for part in parts if isinstance(part, slice)]
        head = slices[: self.ndim - 1]
        if len(slices) == len(parts) <= self.ndim and slices[self.ndim - 1 :] in ([], [_ALL]):
            return Logits(self.hidden[tuple(head)], self.weight)
        if len(parts) > 1 and parts[0] is Ellipsis and len(slices) == len(parts) - 1:
            lead = (_ALL,) * (self.ndim - len(slices))
            return self[(*lead, *slices)]
        return self.computed()[index]

    def computed(self) -> Tensor:
        """Return the logits."""
        return nn.functional.linear(self.hidden, self.weight)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the logits themselves."""
        if name.startswith("__") or name in ("hidden", "weight"):
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
        plain = [value.computed() if isinstance(value, Logits) else value for value in args]
        named = {k: v.computed() if isinstance(v, Logits) else v for k, v in kwargs.items()}
        return func(*plain, **named)


_ALL = slice(None)


def _binary(name: str) -> Callable[..., Any]:
    def compute(self: Logits, *operands: Any) -> Any:
        plain = [value.computed() if isinstance(value, Logits) else value for value in operands]
        return getattr(self.computed(), name)(*plain)

    return compute


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "neg", "matmul", "pow"):
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
    plain = weight is None and size_average is None and reduce is None and not label_smoothing
    is_index = not target.is_floating_point() and target.dim() == logits.ndim - 1
    if not plain or not is_index or logits.ndim != 2 or reduction not in ("mean", "sum"):
        return None
    loss: Tensor = kernels.linear_cross_entropy(
        logits.hidden, logits.weight, target, ignore_index=ignore_index, reduction=reduction
    )
    return loss


def patch_loss(model: Any) -> Patch:
    """Let the model's loss fuse its last linear layer with cross entropy.

    ``model`` has the user's ``module`` and a method ``loss``.
    """
    patch = Patch()
    head = _head(model.module)
    original = function_of(model, "loss")
    if head is None or original is None:
        return patch
    path, layer = head
    is_active = [False]  # while the loss is computed

    def forward(self: nn.Linear, x: Tensor) -> Any:
        return Logits(x, self.weight) if is_active[0] else inner(self, x)

    def loss(self: Any, *batch: Any) -> Tensor:
        is_active[0] = True
        try:
            return original(self, *batch)
        finally:
            is_active[0] = False

    inner = nn.Linear.forward
    patch.replace_method(path, layer, "forward", forward)
    patch.set_attribute(vars(model), "loss", types.MethodType(loss, model))
    return patch


def _head(module: nn.Module) -> tuple[str, nn.Linear] | None:
    """Return the output layer: the one that transformers names, else the only widest one."""
    linears = [
        (path, layer)
        for path, layer in module.named_modules()
        if type(layer) is nn.Linear and layer.bias is None
    ]
    named = getattr(module, "get_output_embeddings", None)
    if callable(named):
        return next((pair for pair in linears if pair[1] is named()), None)
    widest = max((layer.out_features for _, layer in linears), default=0)
    heads = [pair for pair in linears if pair[1].out_features == widest]
    return heads[0] if len(heads) == 1 else None
