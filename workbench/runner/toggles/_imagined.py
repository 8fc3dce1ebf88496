"""Tensors that are only spoken of, to ask a kernel beforehand what it would refuse."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from workbench.runner.toggles._toggle import Situation

COMPUTES = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16, "bf16": torch.bfloat16}


def computing(situation: Situation) -> torch.dtype:
    """The dtype that linear layers give."""
    return COMPUTES.get(situation.option("precision"), torch.float32)


class Imagined(NamedTuple):
    """What a kernel asks of a CUDA tensor before it refuses; a fake one would import Dynamo."""

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
