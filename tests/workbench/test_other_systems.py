"""The window, the commands and sessions work where Python lacks what only POSIX has."""

import ast
import subprocess
import sys

from hang_limit import HANG_S

# What Python on Windows lacks, and every module of the workbench outside of the runner.
WITHOUT_POSIX = """
import importlib, importlib.abc, os, pkgutil, signal, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "pwd", "grp", "resource", "termios", "torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import multiprocessing, subprocess, numpy, PySide6.QtCore, filelock, psutil, tempfile, uuid
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for module, names in (
    (os, "killpg getpgid getpgrp sched_getaffinity register_at_fork geteuid mkfifo"),
    (signal, "SIGHUP SIGKILL"),
):
    for name in names.split():
        delattr(module, name)
import sessions, workbench
for package in (sessions, workbench):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith("workbench.runner") and "__main__" not in module.name:
            importlib.import_module(module.name)
print("imported")
"""


def test_all_but_the_runner_imports_without_posix_and_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True, timeout=HANG_S
    )
    assert done.stdout == "imported\n", done.stderr


def test_little_is_loaded_before_ctrl_c_is_handled():
    program = "import sys; old = {*sys.modules}; import workbench; print({*sys.modules} - old)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    loaded = ast.literal_eval(done.stdout)
    assert {name.partition(".")[0] for name in loaded} <= {
        "workbench", "importlib", "__future__", "warnings", "os",
    }  # fmt: skip
