"""A model of one's own, as ``workbench run --model own_model.py:build`` takes it.

A small image classifier that learns which of four quarters of an image is the brightest.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Classifier(nn.Module):
    """Convolutions with a batch norm, then linears: (B, 1, 16, 16) -> (B, 4)."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.GELU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1),
            nn.GELU(),
        )
        self.head = nn.Sequential(nn.Linear(channels * 64, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of the four quarters."""
        return self.head(self.convolutions(image).flatten(1))


def quarters(image: Tensor) -> Tensor:
    """Which quarter of each image is the brightest: (B,)."""
    return functional.avg_pool2d(image, 8).flatten(1).argmax(1)


def make_inputs(batch: int) -> Tensor:
    """Random images, one quarter of each made brighter."""
    image = torch.randn(batch, 1, 16, 16)
    light = functional.one_hot(torch.randint(4, (batch,)), 4).float().view(batch, 1, 2, 2)
    return image + 2 * functional.interpolate(light, scale_factor=8)


def loss(output: Tensor, image: Tensor) -> Tensor:
    """Cross-entropy of the brightest quarter."""
    return functional.cross_entropy(output.float(), quarters(image))


def build():
    """Return what the workbench requests."""
    return Classifier(), make_inputs, loss
