"""The workbench. Its own modules find this project's packages, not others of their names.

``kernels``, ``models`` and ``sessions`` are names that people use as well. A folder or a file of
that name in the working directory, or on ``PYTHONPATH``, must not replace ours. And ours must not
replace those of a training script that imports ``workbench`` alone.
"""

import importlib
import sys
from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_WHEEL = HERE / "_bundled"  # where a wheel has them: it installs no name but ``workbench``
ROOT = _WHEEL if _WHEEL.is_dir() else HERE.parent
BUNDLED = {name: ROOT / name for name in ("kernels", "models", "sessions")} | {"workbench": HERE}
_INSTRUMENT = "workbench.instrument"


class BundledFinder(MetaPathFinder):
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
        return PathFinder.find_spec(name, [str(BUNDLED[name].parent)])


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
