"""Layers that every family is built from.

A module that owns parameters has ``initial(name, shape, generator)``, their initial values. With it
``models.initialisation`` can draw the same weights for any device and dtype.

Shapes: B batch, S sequence, E model width, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

import kernels
from kernels.linear import is_for_few_rows
from models.parallel.tensor_parallel_plan import WHOLE, Cut, Division, Region

INIT_STD = 0.02  # GPT-2 (Radford et al. 2019), section 2.3 and its published code


def residual_std(n_layers: int) -> float:
    """Return the standard deviation for the linears that write to the residual stream.

    GPT-2, section 2.3: scaled by 1/sqrt(N), N the number of residual additions, two per layer, so
    that the residual stream's variance does not grow with depth.
    """
    return INIT_STD / math.sqrt(2 * n_layers)


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x W^T + b``: (B, S, in) -> (B, S, out), by the operator for few rows if S is 1."""
    if x.dim() == 3 and x.shape[1] == 1 and is_for_few_rows(x):
        return kernels.linear(x, weight, bias)
    return functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """Linear map, (..., in) -> (..., out): weights from N(0, std^2), a bias only on request."""

    def __init__(self, n_in: int, n_out: int, std: float = INIT_STD, bias: bool = False) -> None:
        super().__init__(n_in, n_out, bias=bias)
        self.std = std

    def reset_parameters(self) -> None:
        """Do nothing: ``initial`` draws the values."""

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw the initial value of parameter ``name``, in FP32 on the CPU; zero for a bias."""
        if name == "bias":
            return torch.zeros(shape)
        return torch.empty(shape, dtype=torch.float32).normal_(0.0, self.std, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map."""
        return project(x, self.weight, self.bias)

    def fused(
        self,
        x: Tensor,
        norm: RMSNorm | None = None,
        *,
        residual: Tensor | None = None,
        gated: bool = False,
    ) -> Tensor:
        """Return ``residual + W norm(x)``, without gradients, in one operator.

        (B, S, in) and a residual (B, S, out) -> (B, S, out). ``gated``: the first half of the
        product is a gate, and the result ``silu(gate) * other half`` is half as wide.
        """
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return kernels.fused_linear(x, self.weight, weight, residual, gated, eps)

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Compute only outputs ``start`` to ``stop``: (..., in) -> (..., stop - start)."""
        bias = None if self.bias is None else self.bias[start:stop]
        return project(x, self.weight[start:stop], bias)


class Router(Linear):
    """Linear map whose weight a fused operator reads: it is never called as a layer."""


class Embedding(nn.Embedding):
    """Token embedding, (B, S) -> (B, S, E), started from N(0, 0.02^2)."""

    def reset_parameters(self) -> None:
        """Do nothing: ``initial`` draws the values. On meta, torch's would import Dynamo: 5 s."""

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw the initial value of parameter ``name``, in FP32 on the CPU."""
        return torch.empty(shape, dtype=torch.float32).normal_(0.0, INIT_STD, generator=generator)


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension with a learned gain (arXiv 1910.07467)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Return the initial value of parameter ``name``: ones."""
        return torch.ones(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., E) -> (..., E)."""
        return kernels.rms_norm(x, self.weight, self.eps)

    def after_addition(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised sum ``x + y`` and the sum, both (..., E), in one operator."""
        return kernels.add_rms_norm(y, x, self.weight, self.eps)


class TransformerBlock(nn.Module):
    """Base of blocks ``x += attention(norm(x)); x += mlp(norm(x))``."""

    inner_additions = 1  # additions that a norm of the block follows
    attention_norm: RMSNorm
    mlp_norm: RMSNorm
    attention: nn.Module
    mlp: SwiGLUMLP

    @property
    def first_norm(self) -> RMSNorm:
        """Norm of the block's input."""
        return self.attention_norm

    @property
    def can_fuse_step(self) -> bool:
        """True if attention can include the norm before it and the addition after it."""
        return hasattr(self.attention, "fused_step")

    def after_attention(self, y_BSE: Tensor, x_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum ``x + y``, which one operator also normalises, and what the MLP adds."""
        u_BSE, x_BSE = self.mlp_norm.after_addition(y_BSE, x_BSE)
        return x_BSE, self.mlp(u_BSE)


class SwiGLUMLP(nn.Module):
    """Feed-forward layer ``down(silu(gate x) * up x)`` (arXiv 2002.05202), (B, S, E) -> (B, S, E).

    Gate and up are one linear, the gate's F rows first: one matrix product in each direction.
    """

    def __init__(self, dim: int, hidden: int, std_out: float = INIT_STD) -> None:
        super().__init__()
        self.gate_up = Linear(dim, 2 * hidden)
        self.down = Linear(hidden, dim, std_out)
        self.region: Region = WHOLE
        self.fuses_gate = False  # see LanguageModel.set_fused_linear

    def division(self) -> Division:
        """Shard by columns of the feed-forward width."""
        hidden = self.down.in_features
        cuts = {"gate_up.weight": Cut(0, (hidden, hidden)), "down.weight": Cut(1, (hidden,))}
        units = "columns of a feed-forward layer"
        return Division(units, hidden, cuts, 3 * hidden, unfused=hidden)  # silu(gate)

    def fused_step(self, x_BSE: Tensor, norm: RMSNorm) -> Tensor:
        """Return ``x + forward(norm(x))`` of a decoding step by two operators."""
        return self.down.fused(self.gate_up.fused(x_BSE, norm, gated=True), residual=x_BSE)

    def forward(self, x_BSE: Tensor) -> Tensor:
        """Compute (B, S, E) -> (B, S, E)."""
        x_BSE = self.region.enter(x_BSE, product=True)
        return self.region.leave(self.down(self._gated(x_BSE)))

    def _gated(self, x_BSE: Tensor) -> Tensor:
        """Return ``silu(gate x) * up x``: (B, S, E) -> (B, S, F)."""
        if self.fuses_gate and can_fuse(self.gate_up, x_BSE):
            return self.gate_up.fused(x_BSE, gated=True)
        return kernels.swiglu(self.gate_up(x_BSE))  # type: ignore[no-any-return]


def can_fuse(layer: nn.Module, x: Tensor) -> bool:
    """Return True if an operator may multiply ``x`` by the layer's weight, without gradients.

    A quantized layer multiplies in its own way, and autocast casts what a layer receives.
    """
    if not isinstance(layer, Linear) or torch.is_grad_enabled():
        return False
    return computed_dtype(x) == x.dtype == layer.weight.dtype


def computed_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a linear map of ``x``: x's own, or autocast's, which keeps FP64."""
    return kernels.autocast_dtype(x) or x.dtype


def usable(workspace: kernels.Workspace | None) -> kernels.Workspace | None:
    """Return the workspace if it may be used, else None.

    A compiler plans memory itself, and a backward pass needs what the next layer would overwrite.
    """
    return None if torch.compiler.is_compiling() or torch.is_grad_enabled() else workspace


def mlp_width(dim: int, ratio: float) -> int:
    """Return the feed-forward width for ``ratio * dim``: a multiple of 128, of 8 below 1024.

    Matrix products on tensor cores want multiples of their tile: 2048 x 2.67 becomes 5504.
    """
    exact = dim * ratio
    multiple = 128 if exact >= 1024 else 8
    return max(multiple, round(exact / multiple) * multiple)
