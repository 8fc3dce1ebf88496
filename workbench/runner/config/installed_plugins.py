"""Registration of the operators and model families of plug-ins."""

from __future__ import annotations

import functools

import torch

import kernels
import models
from workbench import plugins


@functools.cache
def register_plugins() -> None:
    """Register plug-ins; each process that builds models calls this before it resolves names."""
    plugins.load("operators", kernels.Operator, _register_operator)
    plugins.load("families", models.Family, models.register)


def _register_operator(op: kernels.Operator) -> None:
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    for implementation in op.implementations.values():
        implementation.missing(device_type)  # the catalogue asks it, and must not fail
    kernels.register(op)
