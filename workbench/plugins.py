"""Registries: the folder of a package, and plug-ins that other installed packages bring.

A registry is a folder whose files each end in one descriptor (``TOGGLE``, ``PLOT`` ...). Another
distribution adds to it by an entry point of the registry's group::

    [project.entry-points."workbench.toggles"]
    my_toggle = "my_package.my_toggle:TOGGLE"

The entry point's name is the descriptor's. A plug-in that cannot be used is skipped, and
``skipped()`` says why; the program continues without it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import util
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Descriptor = TypeVar("Descriptor")
PREFIX = "workbench."  # prefix of the groups of entry points


@dataclass(frozen=True)
class Plugin:
    """A plug-in of this process: its group, the descriptor's name, and its distribution.

    ``problem`` says why it was skipped, in one clause; it is empty for one that is in use.
    """

    group: str
    name: str
    distribution: str  # name and version
    problem: str = ""

    @property
    def sentence(self) -> str:
        """The plug-in and its state, for one line."""
        title = f"plug-in {self.name!r} of {self.distribution} ({PREFIX}{self.group})"
        return f"{title} was skipped: {self.problem}" if self.problem else f"{title} is in use"


_loaded: dict[tuple[str, str, str], Plugin] = {}


def loaded() -> list[Plugin]:
    """Return all plug-ins that this process has tried to load, also those it skipped."""
    return list(_loaded.values())


def skipped() -> list[Plugin]:
    """Return the plug-ins that this process could not use."""
    return [plugin for plugin in loaded() if plugin.problem]


def names(package: str, group: str) -> list[str]:
    """Return the names in a registry without importing its files, which may take long."""
    spec = util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    files = _files(spec.submodule_search_locations)
    return sorted({*files, *(point.name for point in _points(group))})


def gather(
    package: str,
    attribute: str,
    kind: type[Descriptor],
    group: str,
    check: Callable[[Descriptor], object] = lambda descriptor: None,
) -> dict[str, Descriptor]:
    """Return ``{descriptor.name: descriptor}`` of a folder, followed by the group's plug-ins.

    ``check`` raises an error for a plug-in that would break lists of all descriptors.
    """
    descriptors: dict[str, Descriptor] = {}
    for name in _files(importlib.import_module(package).__path__):
        descriptor = getattr(importlib.import_module(f"{package}.{name}"), attribute, None)
        if not isinstance(descriptor, kind):
            raise TypeError(f"{package}/{name}.py must end in {attribute} = {kind.__name__}")
        descriptors[descriptor.name] = descriptor  # type: ignore[attr-defined]

    def register(descriptor: Descriptor) -> None:
        name: str = descriptor.name  # type: ignore[attr-defined]
        if name in descriptors:
            raise ValueError(f"{name!r} exists already")
        check(descriptor)
        descriptors[name] = descriptor

    load(group, kind, register)
    return descriptors


def load(group: str, kind: type[Descriptor], register: Callable[[Descriptor], None]) -> None:
    """Register the descriptors of a group's plug-ins; skip those that fail, and remember why.

    ``register`` raises ``ValueError`` with one clause for a descriptor that it cannot take.
    """
    for point in _points(group):
        problem = ""
        try:
            descriptor = _import(point, kind)
            register(descriptor)
        except ValueError as error:
            problem = _clause(error) or type(error).__name__
        # A plug-in is the code of another package: whatever it raises must not end this process.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            problem = f"{type(error).__name__}: {_clause(error)}"
        distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "a folder"
        plugin = Plugin(group, point.name, distribution, problem)
        _loaded[group, point.name, distribution] = plugin


def _import(point: EntryPoint, kind: type[Descriptor]) -> Descriptor:
    descriptor = point.load()
    if not isinstance(descriptor, kind):
        raise ValueError(
            f"{point.value} is of type {type(descriptor).__name__}, not {kind.__name__}"
        )
    name = descriptor.name  # type: ignore[attr-defined]
    if name != point.name:
        raise ValueError(
            f"the entry point's name is {point.name!r}, but the descriptor's name is {name!r}"
        )
    return descriptor


def _clause(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _files(path: Iterable[str]) -> list[str]:
    """Return the modules of a registry's folder; a leading underscore marks shared code."""
    modules = (module.name for module in pkgutil.iter_modules(path))
    return sorted(name for name in modules if not name.startswith("_"))


@functools.cache
def _points(group: str) -> list[EntryPoint]:
    """Return a group's entry points; reading those of all distributions takes some milliseconds."""
    from importlib.metadata import entry_points  # brings the e-mail library

    points = entry_points(group=f"{PREFIX}{group}")
    return sorted(points, key=lambda point: (point.name, point.value))
