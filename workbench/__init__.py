"""The workbench. Its own modules find this project's packages, not others of their names.

``kernels``, ``models`` and ``sessions`` are names that people use as well. A folder or a file of
that name in the working directory, or on ``PYTHONPATH``, must not replace ours. And ours must not
replace those of a training script that imports ``workbench`` alone.

It imports little: until it is loaded, Python itself answers to Ctrl+C, with a traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_WHEEL = os.path.join(_HERE, "_bundled")  # a wheel has them there: it installs one name only
ROOT = _WHEEL if os.path.isdir(_WHEEL) else os.path.dirname(_HERE)
# Folders by package.
BUNDLED = {name: os.path.join(ROOT, name) for name in ("kernels", "models", "sessions")}
BUNDLED["workbench"] = _HERE
_INSTRUMENT = "workbench.instrument"


class BundledFinder:
    """Finder of the bundled packages, which looks in their own folders only.

    Once a module of the workbench itself is imported, these packages replace any others of their
    names. Before that, a script that only imports ``workbench`` keeps its own packages.
    ``begun``: find them at once; last in line, it finds only what no other finder has.
    """

    def __init__(self, *, begun: bool = False) -> None:
        self._begun = begun

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a bundled package, and None for every other module."""
        if name.startswith("workbench.") and not name.startswith(_INSTRUMENT):
            self._begun = True
        if not self._begun or name not in BUNDLED:
            return None
        return PathFinder.find_spec(name, [os.path.dirname(BUNDLED[name])])


sys.meta_path.insert(0, BundledFinder())
sys.meta_path.append(BundledFinder(begun=True))


def watch(loader: Iterable[Any]) -> Iterable[Any]:
    """Return the loader; ``workbench run -- COMMAND`` records each of its iterations as a step."""
    watched: Iterable[Any] = _instrument().watch(loader)
    return watched


def transformers_callback() -> Any:
    """Return a callback for ``transformers.Trainer``: its steps, and the numbers that it logs."""
    return _instrument().transformers_callback()


def lightning_callback() -> Any:
    """Return a callback for Lightning's ``Trainer``: its steps, and the numbers that it logs."""
    return _instrument().lightning_callback()


def _instrument() -> Any:
    """Return the instrumentation that ``sitecustomize`` loaded, if it did, or else our own."""
    return sys.modules.get("_workbench_instrument") or importlib.import_module(_INSTRUMENT)
