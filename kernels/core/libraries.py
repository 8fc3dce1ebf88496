"""Optional libraries: their versions, and why one cannot be imported."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata

from kernels.core.operator import traced_as_constant


def version(distribution: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@traced_as_constant
def import_problem(module: str) -> str:
    """Import a module once; return why that is impossible, or ""."""
    return _import_problem_once(module)


@functools.cache
def _import_problem_once(module: str) -> str:
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  a broken build may raise anything
        return f"{module} cannot be imported: {type(error).__name__}: {error}"
    return ""
