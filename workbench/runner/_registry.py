"""The folder is the registry: gathers the one descriptor that each module of a package ends in."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TypeVar

Descriptor = TypeVar("Descriptor")


def gather(package: str, attribute: str, kind: type[Descriptor]) -> dict[str, Descriptor]:
    """``{descriptor.name: descriptor}`` of every module whose name has no leading underscore."""
    path = importlib.import_module(package).__path__
    found: dict[str, Descriptor] = {}
    for module in sorted(pkgutil.iter_modules(path), key=lambda module: module.name):
        if module.name.startswith("_"):
            continue
        descriptor = getattr(importlib.import_module(f"{package}.{module.name}"), attribute, None)
        if not isinstance(descriptor, kind):
            raise TypeError(f"{package}/{module.name}.py must end in {attribute} = {kind.__name__}")
        found[descriptor.name] = descriptor  # type: ignore[attr-defined]
    return found
