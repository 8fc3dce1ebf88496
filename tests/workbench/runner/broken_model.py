"""A model of one's own that torch.compile cannot take whole: it prints in the middle."""

import torch
from torch import Tensor, nn


class Talks(nn.Module):
    """Two linears with a print between them, in blocks: (B, 8) -> (B, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the second layer of the first."""
        x = self.layers[0](x)
        print(end="")
        return self.layers[1](x)


def build():
    """Return what the runner requests."""
    return Talks(), lambda batch: torch.randn(batch, 8), lambda output, x: output.square().mean()
