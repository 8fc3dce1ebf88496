"""Detection of random numbers that a model draws; the generators are restored afterwards.

The states of the generators are compared before and after: torch's of the host and of the device,
those that its modules hold, Python's, and numpy's if it is loaded.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn


def states(model: nn.Module, device: torch.device) -> list[Hashable]:
    """Return the states of the generators; they differ after a number was drawn."""
    states_found: list[Hashable] = [
        _bytes(generator.get_state()) for generator in _generators(model, device)
    ]
    states_found.append(random.getstate())
    if numpy := _numpy():
        name, keys, *remaining = numpy.get_state()
        states_found.append((name, keys.tobytes(), *remaining))
    return states_found


@contextlib.contextmanager
def put_back(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore the states of the generators."""
    generators = _generators(model, device)
    states_before = [generator.get_state() for generator in generators]
    python, numpy = random.getstate(), _numpy()
    kept_numpy = numpy.get_state() if numpy else None
    try:
        yield
    finally:
        for generator, state in zip(generators, states_before, strict=True):
            generator.set_state(state)
        random.setstate(python)
        if numpy:
            numpy.set_state(kept_numpy)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Hold every module in evaluation mode, and afterwards restore the mode that it was in.

    Set as flags: a ``train()`` that a person wrote may change weights.
    """
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def copy_modes(model: nn.Module, other: nn.Module) -> None:
    """Set every module to the mode of the module with its name in another model."""
    modes = {name: module.training for name, module in other.named_modules()}
    for name, module in model.named_modules():
        module.training = modes.get(name, other.training)


def _generators(model: nn.Module, device: torch.device) -> list[torch.Generator]:
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    for module in model.modules():
        generators += [
            value for value in vars(module).values() if isinstance(value, torch.Generator)
        ]
    return generators


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(state.numpy())


def _numpy() -> Any:
    """Return ``numpy.random`` if it is loaded."""
    return sys.modules.get("numpy.random")
