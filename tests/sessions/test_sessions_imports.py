"""The package opens files without torch, Qt or the workbench."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import sessions


def test_nothing_of_torch_qt_or_the_workbench_is_imported():
    folder = Path(sessions.__file__).parent
    modules = sorted(f"sessions.{path.stem}" for path in folder.glob("*.py"))
    script = (
        f"import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(*sys.modules)"
    )
    child = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    roots = {name.partition(".")[0] for name in child.stdout.split()}
    assert {"h5py", "numpy", "scipy", "msgspec", "sessions"} <= roots
    assert not roots & {"torch", "triton", "PySide6", "pyqtgraph", "workbench", "kernels", "models"}
