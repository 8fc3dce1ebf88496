"""A wheel installs one top-level name, and works without torch beside other packages' names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hang_limit import HANG_S
from session_files import save_one

ROOT = Path(__file__).parents[2]
BUNDLED = ("kernels", "models", "sessions")
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["triton"] = None
import workbench
from workbench.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.fixture
def crowded(tmp_path):
    """Return a folder with a session, and with files that have the names of bundled packages."""
    folder = tmp_path / "crowded"
    (folder / "models").mkdir(parents=True)
    for name in ("models/__init__.py", "kernels.py", "sessions.py"):
        (folder / name).write_text("raise RuntimeError('another package')")
    save_one(folder / "a.h5")
    return folder


@pytest.fixture
def installed(tmp_path):
    """Return a folder that holds what a wheel does, by links."""
    package = tmp_path / "site" / "workbench"
    (package / "_bundled").mkdir(parents=True)
    for path in (ROOT / "workbench").iterdir():
        (package / path.name).symlink_to(path)
    for name in BUNDLED:
        (package / "_bundled" / name).symlink_to(ROOT / name)
    return package.parent


def run(command, folder, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**clean, "QT_QPA_PLATFORM": "offscreen", **environment},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def test_a_bundle_exports_a_session_from_a_folder_with_the_same_names(crowded, installed):
    table = ["export", "a.h5", "--table", "segments", "-o", "a.md"]
    command = [sys.executable, "-c", WITHOUT_TORCH, *table]
    done = run(command, crowded, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    assert "steady steps" in (crowded / "a.md").read_text()
    code = "import workbench.plugins, kernels, models, sessions; print(kernels.__file__)"
    done = run([sys.executable, "-c", code], crowded, PYTHONPATH=str(installed))
    assert done.stdout.strip() == f"{installed}/workbench/_bundled/kernels/__init__.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_opens_and_exports_a_session_in_a_clean_environment(crowded, tmp_path):
    uv = shutil.which("uv")
    assert uv, "uv builds the wheel"
    run([uv, "build", "-q", "--wheel", "-o", tmp_path / "dist", ROOT], tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"workbench"}
    environment = tmp_path / "venv"
    for command in (
        [uv, "venv", "-q", "--python", sys.executable, environment],
        [uv, "pip", "install", "-q", "--python", environment / "bin/python", wheel],
    ):
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stderr
    program = environment / "bin/workbench"
    assert run([program, "--version"], crowded).stdout == "workbench 0.1.0\n"
    assert run([environment / "bin/python", "-c", "import torch"], crowded).returncode == 1
    for arguments in (["info", "a.h5"], ["export", "a.h5", "--plot", "step_time", "-o", "a.svg"]):
        done = run([program, *arguments], crowded)
        assert done.returncode == 0, done.stderr
    assert "<svg" in (crowded / "a.svg").read_text()
    failed = run([program, "run", "hydra", "--seconds", "1"], crowded)
    assert failed.returncode == 1 and "torch" in failed.stderr
