"""Instrumentation inside a training script: step times, input wait, compiles, settings.

It uses the standard library alone, of Python 3.8 and later, because the script's environment is a
person's own. It imports no torch: it acts when the script does. ``sitecustomize`` starts it, and
what it records goes into a folder that ``workbench.runner.script`` reads.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from . import settings
from .callbacks import lightning_callback, transformers_callback
from .recording import FOLDER, Recording, watch

__all__ = ["lightning_callback", "start", "transformers_callback", "watch"]


def start() -> None:
    """Record this process if its environment variables request it."""
    folder = os.environ.get(FOLDER)
    if folder:
        importlib.import_module(".hooks", __name__).install(
            Recording.begin(folder), settings.read(os.environ.get(settings.VARIABLE, ""))
        )
        sys.meta_path.append(_Workbench())


class _Workbench:
    """Finder of ``import workbench`` in an environment where the workbench is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Return the spec of this very package's parent; nothing else is found here."""
        if name != "workbench":
            return None
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        return importlib.util.spec_from_file_location(
            name,
            os.path.join(folder, "__init__.py"),  # noqa: PTH118
            submodule_search_locations=[folder],
        )
