"""The workbench. Importing it makes this project's own packages win over others of their names.

``kernels``, ``models`` and ``sessions`` are names that people use as well. A folder or a file of
that name in the working directory, or on ``PYTHONPATH``, must not replace ours.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
BUNDLED = ("kernels", "models", "sessions", "workbench")


class BundledFinder(MetaPathFinder):
    """Finder of the bundled packages, which looks beside this one only."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a bundled package, and None for every other module."""
        return PathFinder.find_spec(name, [ROOT]) if name in BUNDLED else None


sys.meta_path.insert(0, BundledFinder())
