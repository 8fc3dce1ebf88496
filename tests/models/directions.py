"""Check by central differences that a model's gradients predict how its loss changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

STEP = 1e-5  # the Euclidean length of a difference; the model is in FP64


def assert_gradients_predict_the_loss(model: Any, *batch: Tensor) -> None:
    """Compare along one random direction in each parameter."""
    model.loss(*batch).backward()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        step = STEP / direction.norm()
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step * direction)
                losses.append(model.loss(*batch).item())
                parameter.sub_(sign * step * direction)
        measured = (losses[0] - losses[1]) / (2 * step.item())
        predicted = (parameter.grad * direction).sum().item()
        assert measured == pytest.approx(predicted, rel=1e-3, abs=1e-7), name
