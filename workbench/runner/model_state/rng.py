"""Detection of random numbers that a model draws; the generators are seeded or restored.

The states of the generators are compared before and after: torch's of the host and of the device,
those that the user's model holds, Python's, and numpy's.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy.random  # loaded in a step, it would look like a drawn number
import torch
from torch import nn

from workbench.runner.model_state.variables import CODE, variables
from workbench.runner.user_models.user_model import OwnModel

_DEEPEST = 3  # levels of containers and attributes
_State = tuple[Callable[[], Any], Callable[[Any], object]]  # reading it, and setting it


def seed_all(seed: int) -> None:
    """Seed the generators of the process: torch's of every device, Python's and numpy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def states(model: nn.Module, device: torch.device) -> list[str]:
    """Return the states of the generators; they differ after a number was drawn."""
    return [_text(get()) for get, _ in _generators(model, device)]


def host_states(values: Iterable[Any] = ()) -> list[str]:
    """Return the states of Python's and numpy's generators, and of those among ``values``."""
    states = map(_state, (random, numpy.random, *values))
    return [_text(state[0]()) for state in states if state is not None]


@contextlib.contextmanager
def put_back(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore the states of the generators."""
    states_before = [(put, get()) for get, put in _generators(model, device)]
    try:
        yield
    finally:
        for put, state in states_before:
            put(state)


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


def _generators(model: nn.Module, device: torch.device) -> list[_State]:
    generators: list[Any] = [torch.default_generator, random, numpy.random]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    if isinstance(model, OwnModel):
        generators += _contents([variable.value for variable in variables(model).values()])
    else:
        generators += [value for module in model.modules() for value in vars(module).values()]
    return [state for generator in generators if (state := _state(generator)) is not None]


def _contents(values: Any, depth: int = 0) -> Iterator[Any]:
    """Yield what lies in containers and attributes."""
    for value in values.values() if isinstance(values, Mapping) else values:
        yield value
        inner = value if isinstance(value, dict | list | tuple) else getattr(value, "__dict__", ())
        if depth < _DEEPEST and not isinstance(value, CODE):
            yield from _contents(inner, depth + 1)


def _state(generator: Any) -> _State | None:
    """Return the functions for the state of a generator; None for anything else."""
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state
    if generator is random or isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, numpy.random.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    if generator is numpy.random or isinstance(generator, numpy.random.RandomState):
        return generator.get_state, generator.set_state
    return None


def _text(state: Any) -> str:
    """Return all of a state as text: arrays print in part only."""
    if hasattr(state, "tolist"):
        return str(state.tolist())
    if isinstance(state, Mapping):
        return str({name: _text(value) for name, value in state.items()})
    return str(list(map(_text, state))) if isinstance(state, tuple) else str(state)
