"""Descriptions of tensors with which a kernel can report, before a run, what it refuses."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Imagined(NamedTuple):
    """Facts of a CUDA tensor that a kernel may refuse; a fake tensor would import Dynamo."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device = torch.device("cuda")
    is_cuda: bool = True

    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize
