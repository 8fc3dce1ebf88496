"""MAHIA-X's fabric: layers that each choose their samples, so that depth depends on the input.

    s_l = x G_l,   C_l = the k samples of largest s_l,   k = capacity n (rounded, at least 1)
    x += sigmoid(s_l) MLP_l(norm(x)) for those in C_l;   the others pass unchanged

Expert choice as in mixture of depths (Raposo et al. 2024, arXiv 2404.02258): k is known beforehand,
the chosen samples are gathered, computed and scattered back, and the work is k rows and not n. The
n samples of a batch (B, E) compete, or the n tokens of each sequence of (B, S, E). Sequences are
independent of each other. The samples of a batch are not: which layers a sample runs depends on the
others (a batch of one sample runs all layers). Each layer computes its samples independently.
"""

# Shapes: B batch (1 for a batch of vectors), S samples that compete, E width, K chosen.

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

import kernels
from models.errors import ConfigurationError
from models.initialisation import started
from models.layers.basic import INIT_STD, Linear, RMSNorm, SwiGLUMLP, mlp_width, residual_std


class FabricLayer(nn.Module):
    """One gated layer over the fraction ``capacity`` of its samples, (B, S, E) -> (B, S, E)."""

    def __init__(
        self, dim: int, hidden: int, capacity: float, norm_eps: float, std_out: float = INIT_STD
    ) -> None:
        super().__init__()
        self.capacity = capacity
        self.gate = Linear(dim, 1)
        self.norm = RMSNorm(dim, norm_eps)
        self.mlp = SwiGLUMLP(dim, hidden, std_out)

    def forward(self, x_BSE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result, the weights of the chosen (B, K), and their indices (B, K) int64."""
        # In FP32: in half precision, equal scores would be common, and the order of samples would
        # decide.
        wide = torch.promote_types(x_BSE.dtype, torch.float32)
        with kernels.without_autocast(x_BSE):
            scores_BS = functional.linear(x_BSE.to(wide), self.gate.weight.to(wide)).squeeze(-1)
        k = chosen(self.capacity, x_BSE.shape[1])
        x_BKE, chosen_BK, place_BK = kernels.token_router(x_BSE, scores_BS, k)
        weight_BK = chosen_BK.sigmoid()
        update_BKE = self.mlp(self.norm(x_BKE))
        return kernels.token_scatter(x_BSE, update_BKE, weight_BK, place_BK), weight_BK, place_BK


class DynamicNeuroFabric(nn.Module):
    """Up to ``max_layers`` layers for each sample, (B, E) -> (B, E) or (B, S, E) -> (B, S, E).

    ``capacity`` is the fraction of the samples that a layer computes, above 0 up to 1. Raises
    ``ConfigurationError`` for impossible sizes.
    """

    # Arguments of kernels.using that choose a path by hand; by default each operator chooses.
    FUSED: ClassVar[dict[str, str]] = dict.fromkeys(
        ("token_router", "token_scatter", "rms_norm", "swiglu"), "triton"
    )
    STANDARD: ClassVar[dict[str, str]] = dict.fromkeys(FUSED, "torch")

    def __init__(
        self,
        dim: int,
        max_layers: int = 8,
        *,
        capacity: float = 0.5,
        mlp_ratio: float = 2.67,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if dim < 1 or max_layers < 1 or not 0 < capacity <= 1:
            raise ConfigurationError(
                f"DynamicNeuroFabric: dim = {dim} and max_layers = {max_layers} must be at least "
                f"1, and capacity = {capacity} must be above 0 and at most 1"
            )
        self.dim = dim
        hidden, std_out = mlp_width(dim, mlp_ratio), residual_std(max_layers)
        self.layers = nn.ModuleList(
            FabricLayer(dim, hidden, capacity, norm_eps, std_out) for _ in range(max_layers)
        )
        started(self)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (B, E) or (B, S, E) to the same shape."""
        if x.dim() not in (2, 3) or x.shape[-1] != self.dim:
            raise ConfigurationError(
                f"DynamicNeuroFabric: expected (B, {self.dim}) or (B, T, {self.dim}), got "
                f"{tuple(x.shape)}"
            )
        return self.routed(x if x.dim() == 3 else x[None])[0].view_as(x)

    def routed(self, x_BSE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (B, S, E), each sample's number of layers (B, S) int64, mean weight by layer."""
        depth_BS = torch.zeros(x_BSE.shape[:2], dtype=torch.int64, device=x_BSE.device)
        weights = []
        for layer in self.layers:
            x_BSE, weight_BK, place_BK = layer(x_BSE)
            depth_BS = depth_BS.scatter_add(1, place_BK, torch.ones_like(place_BK))
            weights.append(weight_BK.detach().mean())
        return x_BSE, depth_BS, torch.stack(weights)


def chosen(capacity: float, n: int) -> int:
    """Return how many of ``n`` samples a layer computes."""
    return max(1, round(capacity * n))


def depth_shares(depth_BS: Tensor, max_layers: int) -> Tensor:
    """Return the fraction of samples that ran d layers, for d = 0 ... ``max_layers``, in FP32."""
    depths = torch.arange(max_layers + 1, device=depth_BS.device)
    return (depth_BS.flatten()[:, None] == depths).float().mean(0)
