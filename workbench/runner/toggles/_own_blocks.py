"""Gradient checkpointing in a user's model: the entries of its lists of modules are the blocks.

A block is computed again in backward, so both computations must be equal. torch repeats the random
numbers of its own generators, but not in a captured step. Whether a block draws any, and whether it
changes its buffers, attributes or inputs, is examined in its first call, which saves everything.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from models.execution.checkpointing import CHECKPOINTING, recomputed
from workbench.runner.foreign.patches import Call, Patch, function_of
from workbench.runner.model_state.rng import host_states
from workbench.runner.structures import listed_modules


@dataclass(frozen=True)
class _Examined:
    draws: bool  # random numbers of torch
    unequal: str = ""  # why a second computation would not be equal


_examined: weakref.WeakKeyDictionary[nn.Module, _Examined] = weakref.WeakKeyDictionary()


def checkpoint_blocks(model: nn.Module, mode: str) -> Patch:
    """Let blocks save less for backward, as ``Model.set_checkpointing`` says for ``mode``."""
    patch, paths = Patch(), {module: path for path, module in model.named_modules()}
    replaced: dict[Call, Call] = {}  # equal blocks share a function, and so compiled code
    for index, block in enumerate(all_blocks(model)):
        function = function_of(block, "forward")
        if function is not None and index % CHECKPOINTING[mode] == 0:
            checkpointed = replaced.setdefault(function, _checkpointed(function, mode))
            patch.replace_method(paths[block], block, "forward", checkpointed)
    return patch


def all_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the entries of the model's outermost lists of modules; a shared entry only once."""
    return list(dict.fromkeys(listed_modules(model)))


def recomputed_blocks(model: nn.Module, patch: Patch, *, captured: bool) -> dict[str, str]:
    """Return why not, by path, for each replaced block that was called; empty if it recomputes."""
    reasons = {}
    for path in patch.sites:
        if (examined := _examined.get(model.get_submodule(path))) is not None:
            draws = captured and examined.draws
            reason = "draws random numbers that a captured step cannot repeat" if draws else ""
            reasons[path] = examined.unequal or reason
    return reasons


def restore_unequal(model: nn.Module, patch: Patch) -> None:
    """Put back the ``forward`` of blocks that must not compute twice, before a compiler sees it."""
    for path, why in recomputed_blocks(model, patch, captured=False).items():
        block = model.get_submodule(path)
        original = getattr(function_of(block, "forward"), "__wrapped__", None)
        if why and original is not None:
            vars(block)["forward"] = types.MethodType(original, block)


def _checkpointed(forward: types.FunctionType, mode: str) -> Call:
    """Return the function that replaces ``forward``."""

    @functools.wraps(forward)
    def checkpointed(block: nn.Module, *inputs: Any, **options: Any) -> Any:
        # Keyword arguments too are saved like inputs: counted, and guarded against changes.
        names, values = tuple(options), (*inputs, *options.values())

        def compute(*given: Any) -> Any:
            some, rest = given[: len(inputs)], given[len(inputs) :]
            return forward(block, *some, **dict(zip(names, rest, strict=True)))

        if torch.compiler.is_compiling():
            return recomputed(mode, compute, *values, repeats_draws=True)
        known, captured = _examined.get(block), _is_capturing()
        if known is None and not captured:
            return _examine(block, forward, values, compute)
        is_repeatable = known is not None and not known.unequal and not (captured and known.draws)
        if not (is_repeatable and torch.is_grad_enabled()):
            return compute(*values)
        return recomputed(mode, compute, *values, repeats_draws=not captured)

    return checkpointed


def _examine(
    block: nn.Module, forward: types.FunctionType, inputs: tuple[Any, ...], compute: Call
) -> Any:
    """Return the output of a block's first call, and remember what the call did."""
    values = [*_attributes(block).values(), *forward.__globals__.values()]
    drawn, host = _generators(), host_states(values)
    before = _changeable(block, inputs)
    output = compute(*inputs)
    after = _changeable(block, inputs)
    changed = [name for name in before.keys() & after.keys() if before[name] != after[name]]
    unequal = f"changes its {min(changed)}" if changed else ""
    if host_states(values) != host:
        unequal = "draws numbers of a generator that torch does not repeat"
    _examined[block] = _Examined(_generators() != drawn, unequal)
    return output


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _generators() -> list[bytes]:
    """Return the states of the generators whose numbers torch repeats."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return [state.numpy().tobytes() for state in states]


def _attributes(block: nn.Module) -> dict[str, Any]:
    """Return the attributes of the block's modules by their paths."""
    return {
        f"{path}.{name}".removeprefix("."): value
        for path, module in block.named_modules()
        for name, value in vars(module).items()
    }


def _changeable(block: nn.Module, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Return numbers that show a change of the block or its inputs, by what they belong to.

    They are the numbers of changes of tensors, plain values of attributes, and sizes of containers.
    """
    tensors = {f"buffer {name}": buffer for name, buffer in block.named_buffers()}
    for number, leaf in enumerate(tree_leaves(inputs), 1):
        if isinstance(leaf, Tensor):
            tensors[f"input {number}"] = leaf
    marks: dict[str, Any] = {
        name: tensor._version for name, tensor in tensors.items() if not tensor.is_inference()
    }
    for name, value in _attributes(block).items():
        if isinstance(value, bool | int | float | str):
            marks[f"attribute {name}"] = value
        elif isinstance(value, dict | list | set | deque):
            marks[f"attribute {name}"] = len(value)
    return marks
