"""A newcomer adds an operator, a toggle or a plot as one file, and changes nothing else.

The files of ``tests/examples/newcomer`` are put into a copy of the project, in which the generic
tests pass. They are the examples that ``workbench/pages/ARCHITECTURE.md`` names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "tests" / "examples" / "newcomer"
# File: the folder that it is put into, the tests that must pass, and how many at least must run.
NEWCOMERS = {
    "squared_relu.py": (
        "kernels",
        (
            "tests/kernels/test_operators_are_right.py",
            "tests/kernels/test_planted_bugs.py",
            "tests/kernels/test_huge.py",
            "tests/kernels/core",
            "tests/workbench/runner/toggles/test_kernel_toggles.py",
        ),
        20,
    ),
    "deterministic.py": ("workbench/runner/toggles", ("tests/workbench/runner/toggles",), 3),
    "step_rate.py": (
        "workbench/plots",
        ("tests/workbench/plots/test_plots.py", "tests/workbench/plots/test_export.py"),
        4,
    ),
}
ALWAYS = ("tests/test_layering.py", "tests/test_language.py")


@pytest.fixture
def copy(tmp_path) -> Path:
    """Return a copy of the project, as a fresh checkout has it."""
    folders = ("kernels", "models", "sessions", "workbench", "tests")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in folders:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run_tests(copy: Path, *words: str) -> str:
    """Run pytest in the copy, whose packages it imports; return its output, or fail with it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *words],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},  # for the processes that tests start
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", NEWCOMERS)
def test_one_file_is_enough(file, copy):
    folder, tests, least = NEWCOMERS[file]
    shutil.copy(EXAMPLES / file, copy / folder / file)
    name = file.removesuffix(".py")
    # Tests about the new name, and those about all names at once.
    names = f"{name} or every_operator or every_triton or folder"
    chosen = run_tests(copy, "-rA", "-k", names, *tests)
    assert chosen.count(f"PASSED {tests[0]}".rsplit("/", 1)[0]) >= least, chosen[-3000:]
    assert name in chosen
    run_tests(copy, *ALWAYS)


def test_each_example_is_described(tmp_path):
    text = (ROOT / "workbench" / "pages" / "ARCHITECTURE.md").read_text()
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(NEWCOMERS)
    assert all(f"tests/examples/newcomer/{file}" in text for file in NEWCOMERS)
