"""MAHIA-X's memory: slots retrieved by similarity, and a learned graph that diffuses retrieval.

    h_0 = softmax(x M^T),   h_(s+1) = (1 - a) h_0 + a P h_s,   P = softmax(A)
    y = W [x; h_0 M; h_S M]

M [slots, dim] are the slots, A [slots, slots] the graph; with ``top_k`` a row of P keeps its k
largest entries, with the softmax over those. Diffusion: Gasteiger et al. 2019 (arXiv 1810.05997).
"""

# Shapes: B batch, E width, M slots.

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

import kernels
from models.errors import ConfigurationError
from models.initialisation import Sparing, started
from models.layers.basic import INIT_STD, Linear


class GraphDiffusionMemory(Sparing):
    """Retrieval from ``memory_size`` slots, diffused over a graph, (B, E) -> (B, E).

    The slots are a parameter: they are trained, and variants of a model share them. Only ``update``
    and an optimizer write to them. ``top_k`` 0 means every slot. Raises ``ConfigurationError`` for
    sizes that do not fit together.
    """

    spared = ("memory_ME",)  # stored memories do not decay
    # Arguments of kernels.using that choose a path by hand; by default each operator chooses.
    FUSED: ClassVar[dict[str, str]] = {"graph_diffusion": "triton"}
    STANDARD: ClassVar[dict[str, str]] = {"graph_diffusion": "torch"}

    def __init__(
        self,
        dim: int,
        memory_size: int = 64,
        *,
        steps: int = 3,
        alpha: float = 0.85,
        top_k: int = 0,
        std_out: float = INIT_STD,
    ) -> None:
        super().__init__()
        if dim < 1 or memory_size < 1 or not 0 <= top_k <= memory_size:
            raise ConfigurationError(
                f"GraphDiffusionMemory: dim = {dim} and memory_size = {memory_size} must be at "
                f"least 1, and top_k = {top_k} from 0 to memory_size"
            )
        self.dim, self.steps, self.alpha, self.top_k = dim, steps, alpha, top_k
        self.memory_ME = nn.Parameter(torch.empty(memory_size, dim))
        self.graph_MM = nn.Parameter(torch.empty(memory_size, memory_size))
        self.out = Linear(3 * dim, dim, std_out)
        started(self)

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw slots and a graph: products with a normalised input, and entries, vary by 1."""
        std = self.dim**-0.5 if name == "memory_ME" else 1.0
        return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)

    def forward(self, x_BE: Tensor) -> Tensor:
        """Compute (B, E) -> (B, E)."""
        if x_BE.dim() != 2 or x_BE.shape[-1] != self.dim:
            raise ConfigurationError(
                f"GraphDiffusionMemory: expected (B, {self.dim}), got {tuple(x_BE.shape)}"
            )
        return self.read(x_BE)[0]

    def read(self, x_BE: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, E) for (B, E), and the retrieval weights h_0 (B, M), in FP32 at least."""
        h_BM = self.retrieval(x_BE)
        spread_BM = kernels.graph_diffusion(
            h_BM, self.transitions(), steps=self.steps, alpha=self.alpha
        )
        memory_ME = self.memory_ME
        found_BE, spread_BE = (h.to(memory_ME.dtype) @ memory_ME for h in (h_BM, spread_BM))
        return self.out(torch.cat([x_BE, found_BE, spread_BE], -1)), h_BM

    def retrieval(self, x_BE: Tensor) -> Tensor:
        """Compute softmax(x M^T): (B, E) -> (B, M), in FP32 at least."""
        scores_BM = x_BE @ self.memory_ME.T
        return scores_BM.softmax(-1, dtype=torch.promote_types(scores_BM.dtype, torch.float32))

    def transitions(self) -> Tensor:
        """Return P [M, M], in FP32 at least: rows that sum to 1, of ``top_k`` entries if not 0."""
        graph_MM = self.graph_MM.to(torch.promote_types(self.graph_MM.dtype, torch.float32))
        if not self.top_k:
            return graph_MM.softmax(-1)
        kept_MK, place_MK = graph_MM.topk(self.top_k, dim=-1)
        return torch.zeros_like(graph_MM).scatter(-1, place_MK, kept_MK.softmax(-1))

    @torch.no_grad()
    def update(self, x_BE: Tensor, rate: float = 0.1) -> None:
        """Write ``x_BE`` (B, E) into the slots in place, in proportion to their retrieval.

        M_i += rate sum_b h_bi (x_b - M_i) / max(1, sum_b h_bi), with h = softmax(x M^T): the delta
        rule for slots that few retrieve, the mean for slots that many do. ``rate`` is from 0 to 1.
        Do not call it between a forward pass and its backward pass, which needs the unchanged
        slots.
        """
        if not 0 <= rate <= 1:
            raise ConfigurationError(f"GraphDiffusionMemory: rate = {rate} is outside of 0 to 1")
        h_BM = self.retrieval(x_BE)
        mass_M1 = h_BM.sum(0)[:, None]
        memory_ME = self.memory_ME.to(h_BM.dtype)
        step_ME = (h_BM.T @ x_BE.to(h_BM.dtype) - mass_M1 * memory_ME) / mass_M1.clamp(min=1)
        self.memory_ME.copy_(memory_ME + rate * step_ME)


def normalised_entropy(h_BM: Tensor) -> Tensor:
    """Return the rows' mean entropy over that of equal weights: [], 0 for one slot, 1 for all."""
    if h_BM.shape[-1] == 1:
        return h_BM.new_zeros(())
    return torch.special.entr(h_BM.detach()).sum(-1).mean() / math.log(h_BM.shape[-1])
