"""References to parameters outside of their modules: containers, attributes, functions, and hooks.

A build that takes another model's parameters must use those everywhere. ``nn.LSTM``, for example,
computes with a list of its parameters, and a loss may add the norm of one that it closes over.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from workbench.runner.failures import Mistake
from workbench.runner.structures import of_type, slots

_LEAVES = (types.ModuleType, type, str, bytes, int, float, complex, type(None))


def adopt_parameters(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Let ``weights`` be a model's parameters wherever it refers to its own; hooks are copied.

    Raises ``Mistake`` if these are not its parameters.
    """
    learned = [(weight, weight.requires_grad) for weight in weights.values()]
    before = dict(model.named_parameters(remove_duplicate=False))
    for name in {**before, **weights}:
        shapes = [tuple(x.shape) for x in (weights.get(name), before.get(name)) if x is not None]
        if len({*shapes}) > 1 or len(shapes) < 2:
            shown = " and ".join(map(str, shapes)) if len(shapes) > 1 else "absent in one of them"
            raise Mistake(
                f"own: two builds of the model differ: the parameter {name} is {shown}; let "
                "build() return the same modules each time"
            )
    model.load_state_dict(weights, strict=False, assign=True)
    for weight, needs_gradient in learned:  # the assignment copied the model's flags
        weight.requires_grad_(needs_gradient)
    after = dict(model.named_parameters(remove_duplicate=False))
    pairs = [(old, after[name]) for name, old in before.items() if after[name] is not old]
    # The weight of a quantized layer is one NaN, expanded: references keep the file's numbers.
    replacements = {id(old): new for old, new in pairs if any(new.stride()) or not new.dim()}
    waiting: list[Any] = [model]
    for old, new in pairs:
        waiting += _copy_hooks(old, new)
    _replace(waiting, lambda tensor, _: replacements.get(id(tensor), tensor))


def aliased(model: nn.Module) -> str:
    """Return the name of a parameter that something beside its modules refers to; else empty.

    The lists of recurrent layers of torch do not count: these layers replace what is in them.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = {id(module._parameters) for module in model.modules()}
    own |= {id(m._flat_weights) for m in model.modules() if isinstance(m, nn.RNNBase)}
    aliases: list[str] = []

    def note(tensor: Tensor, holder: Any) -> Tensor:
        if id(tensor) in names and id(holder) not in own:
            aliases.append(names[id(tensor)])
        return tensor

    _replace([model], note)
    return next(iter(aliases), "")


def _replace(waiting: list[Any], replacement: Callable[[Tensor, Any], Tensor]) -> None:
    """Replace every tensor that these objects reach; ``replacement`` gets it and what holds it."""
    visited: dict[int, Any] = {}  # the references keep an id from being reused
    holder: Any = None

    def current(value: Any) -> Any:
        if isinstance(value, Tensor):
            return replacement(value, holder)
        if isinstance(value, tuple):
            parts = [current(part) for part in value]
            if all(a is b for a, b in zip(parts, value, strict=True)):
                return value
            return of_type(value, parts)
        waiting.append(value)
        return value

    while waiting:
        value = waiting.pop()
        if id(value) in visited or isinstance(value, _LEAVES):
            continue
        visited[id(value)] = holder = value
        match value:
            case dict() | list() | collections.deque():
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for key, child in list(items):
                    if (new_child := current(child)) is not child:
                        value[key] = new_child
            case types.FunctionType():
                for cell in value.__closure__ or ():
                    _replace_content(cell, current)
                if (defaults := current(value.__defaults__)) is not value.__defaults__:
                    value.__defaults__ = defaults
                waiting += [value.__kwdefaults__, value.__dict__]
            case types.MethodType():
                waiting += [value.__self__, value.__func__]
            case functools.partial():
                if (arguments := current(value.args)) is not value.args:
                    state = (value.func, arguments, value.keywords, value.__dict__)
                    value.__setstate__(state)  # type: ignore[attr-defined]
                waiting += [value.func, value.keywords, value.__dict__]
            case _:
                waiting.append(getattr(value, "__dict__", None))
                for name, child in slots(value).items():
                    if (new_child := current(child)) is not child:
                        object.__setattr__(value, name, new_child)


def _copy_hooks(old: nn.Parameter, new: nn.Parameter) -> list[Any]:
    """Register the gradient hooks of ``old`` on ``new`` unless it has hooks; return them."""
    if not new.requires_grad:
        return []
    hooks: list[Any] = []
    for kind, register in (
        ("_backward_hooks", new.register_hook),
        ("_post_accumulate_grad_hooks", new.register_post_accumulate_grad_hook),
    ):
        if not getattr(new, kind, None):
            for hook in (getattr(old, kind, None) or {}).values():
                register(hook)
                hooks.append(hook)
    return hooks


def _replace_content(cell: types.CellType, current: Any) -> None:
    try:
        content = cell.cell_contents
    except ValueError:  # empty
        return
    if (new := current(content)) is not content:
        cell.cell_contents = new
