"""A model of one's own that is made of the bundled kernels: their toggles act on it too.

A block of attention and a gated MLP over vectors, which learns to pass on what it saw one place
before.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import kernels

HEADS, DIM = 2, 32


class Block(nn.Module):
    """(B, S, 64) -> (B, S, 64), causal."""

    def __init__(self, width: int = HEADS * DIM) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.ones(DIM))
        self.gate_up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, with residual connections."""
        heads = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).transpose(1, 3).unbind(2)
        q, k = kernels.qk_norm(heads[0], heads[1], self.q_norm, self.k_norm)
        y = kernels.attention(q, k, heads[2].to(q.dtype), causal=True)
        x = x + y.transpose(1, 2).flatten(-2)
        return x + self.down(kernels.geglu(self.gate_up(x)))


def make_inputs(batch: int) -> Tensor:
    """Random vectors."""
    return torch.randn(batch, 16, HEADS * DIM)


def loss(output: Tensor, x: Tensor) -> Tensor:
    """Squared distance to the vector before."""
    return functional.mse_loss(output[:, 1:].float(), x[:, :-1].float())


def build():
    """Return what the workbench requests."""
    return Block(), make_inputs, loss
