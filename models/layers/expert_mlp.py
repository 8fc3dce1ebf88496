"""Feed-forward layer of experts: k experts, chosen by a router, compute each token.

The balancing loss is that of Fedus et al. 2021 (arXiv 2101.03961), equations 4 to 6.
"""

# Shapes: B batch, S sequence, E model width, X experts, F expert width.

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

import kernels
from models.layers.basic import INIT_STD, Router, usable
from models.parallel.tensor_parallel_plan import WHOLE, Division, Region, experts_division


class ExpertMLP(nn.Module):
    """SwiGLU experts behind a top-k router with renormalised weights, (B, S, E) -> (B, S, E)."""

    def __init__(
        self, dim: int, hidden: int, n_experts: int, top_k: int, std_out: float = INIT_STD
    ) -> None:
        super().__init__()
        self.top_k, self.std_out = top_k, std_out
        self.router = Router(dim, n_experts)
        self.gate_up = nn.Parameter(torch.empty(n_experts, 2 * hidden, dim))
        self.down = nn.Parameter(torch.empty(n_experts, dim, hidden))
        # Memory for inference, if it is set; overwritten by each layer that has the same.
        self.workspace: kernels.Workspace | None = None
        self.region: Region = WHOLE

    def division(self) -> Division:
        """Shard by columns of each expert; the router is replicated."""
        return experts_division(self.down, self.top_k)

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw the initial value of parameter ``name``, in FP32 on the CPU."""
        std = INIT_STD if name == "gate_up" else self.std_out
        return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)

    def forward(self, x_BSE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result, the balancing loss ([], 1 if balanced), and expert loads."""
        weight, expert, count_X, mean_X = kernels.moe_gating(x_BSE, self.router.weight, self.top_k)
        share_X = count_X.to(mean_X.dtype) / expert.numel()
        y_BSE = kernels.moe_experts(
            self.region.enter(x_BSE),
            expert,
            self.region.common(weight),
            self.gate_up,
            None,
            self.down,
            workspace=usable(self.workspace),
        )
        return self.region.leave(y_BSE), len(share_X) * (share_X * mean_X).sum(), share_X
