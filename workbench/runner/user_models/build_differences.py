"""Builds of the user's model that differ: none of them can be the reference of another."""

from __future__ import annotations

from torch import nn

from workbench.runner.user_models.user_model import OwnConfig, fresh

_BUILDS = 3  # a random choice may be the same in two of them


def difference_of_builds(config: OwnConfig) -> str:
    """Return how builds of one file differ in their modules, as a clause; empty if they do not."""
    try:
        first, *later = (_structure(fresh(config).module) for _ in range(_BUILDS))
    except Exception:  # noqa: BLE001 - a failing build has its own message elsewhere
        return ""
    for structure in later:
        for name in {**first, **structure}:
            before, after = (parts.get(name, "absent") for parts in (first, structure))
            if before != after:
                return (
                    f"two builds of the model differ: {name} is {before} in one and {after} in the "
                    "other; let build() return the same modules each time"
                )
    return ""


def _structure(model: nn.Module) -> dict[str, str]:
    """Return the types of modules, the functions that they hold, and the shapes of parameters."""
    parts = {}
    for name, module in model.named_modules():
        parts[name or "the model"] = type(module).__qualname__
        for key, value in vars(module).items():
            if callable(value):
                function = getattr(value, "__qualname__", type(value).__qualname__)
                parts[f"{name}.{key}".lstrip(".")] = function
    shapes = {name: str(tuple(x.shape)) for name, x in model.named_parameters()}
    return parts | shapes
