"""Files of a person's model that do unusual things: the run ends with one sentence, or works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from built import owned
from process_end import assert_end
from runner_driver import Driver

from workbench import protocol
from workbench.runner.failures import Mistake
from workbench.runner.user_models import user_model

PROJECT = Path(__file__).parents[3] / "examples" / "project"
MODEL = """
import os, subprocess, sys, torch
class Own(torch.nn.Linear):
    def forward(self, x):
        {forward}
        return super().forward(x)
def build():
    {build}
    return Own(3, 3), lambda batch: torch.randn(batch, 3)
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def load(path: Path) -> user_model.Parts:
    return user_model.load(user_model.FAMILY.configure("file", {"source": str(path)}), 0)


# Relative imports

LAYERS = """
from .sizes import WIDTH
import torch
class Layer(torch.nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)
"""
RELATIVE = """
{imports}
import torch
def build():
    return Layer(), torch.ones(2, 3)
"""


@pytest.mark.parametrize(
    ("folder", "imports", "beside"),
    [
        ("", "from .layers import Layer", {"layers.py": LAYERS, "sizes.py": "WIDTH = 3"}),
        (
            "",
            "from . import layers\nLayer = layers.Layer",
            {"layers.py": LAYERS, "sizes.py": "WIDTH = 3"},
        ),
        (
            "net/small",
            "from . import WIDTH\nfrom ..layers import Layer",
            {
                "net/__init__.py": "",
                "net/small/__init__.py": "WIDTH = 3",
                "net/layers.py": LAYERS,
                "net/sizes.py": "WIDTH = 3",
            },
        ),
    ],
)
def test_a_file_may_import_what_lies_in_its_package(write, folder, imports, beside):
    for name, text in beside.items():
        write(text, name)
    path = write(RELATIVE.format(imports=imports), str(Path(folder) / "mine.py"))
    assert load(path).module.in_features == 3
    config = user_model.FAMILY.configure("file", {"source": str(path)})
    before = user_model._digest(path)
    sizes = next(name for name in beside if name.endswith("sizes.py"))
    write("WIDTH = 2 + 3", sizes)
    assert user_model.load(config, 0).module.in_features == 5, "the file as it is now"
    assert user_model._digest(path) != before


def test_a_relative_import_beside_a_package_of_our_name_finds_both(write):
    write("import torch\nLayer = torch.nn.Linear", "models/__init__.py")
    write("from models import Layer", "layers.py")
    imports = "from .layers import Layer as Base\nLayer = lambda: Base(3, 3)"
    assert load(write(RELATIVE.format(imports=imports))).module.in_features == 3


# Files that Python cannot read

NESTED = {
    "signs": "x = " + "-" * 100_000 + "1",
    "sums": "x = " + "+".join(["1"] * 100_000),
    "attributes": "x = a" + ".b" * 100_000,
    "brackets": "x = " + "(" * 100_000 + ")" * 100_000,
    "powers": "x = " + "1**" * 5_000 + "1",
    "conditions": "x = " + "1 if 1 else " * 100_000 + "1",
    "branches": "if 1: pass\n" + "elif 1: pass\n" * 100_000,
}


@pytest.mark.parametrize("imported", [False, True], ids=["file", "imported"])
@pytest.mark.parametrize("kind", NESTED)
def test_a_file_that_nests_too_deeply_is_one_sentence(write, kind, imported):
    path = write(NESTED[kind])
    if imported:
        path = write("import mine\n", "importing.py")
    with pytest.raises(Mistake) as raised:
        load(path)
    sentence = str(raised.value)
    assert "nest" in sentence and "\n" not in sentence and len(sentence) < 300, sentence


# What is no Exception


@pytest.mark.parametrize("where", ["file", "build", "forward"])
@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_any_base_exception_ends_the_run_and_not_the_runner(runner, write, kind, where):
    raising = f"raise {kind}('enough')"
    if where == "file":
        path = write(raising)
    else:
        texts = {"build": "pass", "forward": "pass", where: raising}
        path = write(MODEL.format(**texts))
    since = len(runner.messages)
    runner.start(owned(path, "forward"), steps=3)
    assert runner.finish().reason == "failed"
    (failure,) = [m for m in runner.messages[since:] if isinstance(m, protocol.Failure)]
    assert kind in failure.sentence and "enough" in failure.sentence and not failure.fatal


# Processes

SLEEPER = "subprocess.Popen([sys.executable, '-c', {program!r}], start_new_session=True{more})"
LEAVES = (  # its parent ends at once
    "import os, sys, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "open({path!r}, 'w').write(str(os.getpid()))\n"
    "time.sleep(1e6)"
)


def is_running(number: int) -> bool:
    return psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("end", ["killed", pytest.param("quit", marks=pytest.mark.slow)])
def test_processes_in_sessions_of_their_own_end_with_the_runner(write, tmp_path, end):
    number_file = tmp_path / "number"
    start = SLEEPER.format(program=LEAVES.format(path=str(number_file)), more="").replace("{", "{{")
    driver = Driver()
    driver.until_state("idle")
    driver.start(owned(write(MODEL.format(build=start, forward="pass")), "forward"), steps=2)
    driver.finish()
    while not (number_file.exists() and number_file.read_text()):
        assert driver.runner.alive
    number = int(number_file.read_text())
    assert is_running(number)
    process = psutil.Process(number)
    if end == "killed":
        os.killpg(driver.runner.process.pid, signal.SIGKILL)
    driver.close()
    assert_end([process])


# Names of ours in other places


def test_a_project_whose_package_is_called_models_runs(runner):
    since = len(runner.messages)
    for _ in range(2):
        runner.start(
            owned(f"{PROJECT}/train.py:build", workload="train", toggles={"compile": "off"}),
            steps=3,
        )
        assert runner.finish().reason == "done", runner.describe()
    assert not [m for m in runner.messages[since:] if isinstance(m, protocol.Failure)]


def test_both_packages_of_a_name_are_used_side_by_side(write):
    import models.hydra as ours

    write("from . import parts\nfrom .parts import WIDTH\n", "models/__init__.py")
    write("import kernels\nWIDTH = kernels.WIDTH\n", "models/parts.py")
    write("WIDTH = 5\n", "kernels.py")
    write("import models.parts\nfrom models import WIDTH\n", "helper.py")
    path = write(
        "import importlib, helper, torch\n"
        "import models.parts as parts\n"
        "class Own(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        from models.parts import WIDTH\n"
        "        assert WIDTH == 5 and importlib.import_module('torch') is torch\n"
        "        return super().forward(x)\n"
        "def build():\n"
        "    assert importlib.import_module('models.parts') is parts is helper.models.parts\n"
        "    return Own(parts.WIDTH, 3), lambda batch: torch.randn(batch, 5)\n"
    )
    parts = load(path)
    assert parts.module(torch.zeros(2, 5)).shape == (2, 3)
    assert sys.modules["models.hydra"] is ours
    first = user_model.FAMILY.configure("file", {"source": str(path)}).sha256
    write("WIDTH = 5  # edited\n", "kernels.py")
    assert user_model.FAMILY.configure("file", {"source": str(path)}).sha256 != first


def test_names_of_ours_in_the_working_directory_change_nothing(tmp_path):
    folder = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    for name in ("kernels", "sessions"):
        (folder / f"{name}.py").write_text("raise RuntimeError('not ours')\n")
    program = (
        "import workbench.plugins, sessions, models.hydra, kernels\n"
        "print(sessions.__file__, models.__file__, kernels.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and str(folder) not in done.stdout, done.stderr


def test_a_command_runs_in_a_folder_full_of_names_of_ours(tmp_path):
    folder = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    for name in ("kernels", "sessions", "workbench", "queue", "random"):
        (folder / f"{name}.py").write_text("raise RuntimeError('not ours')\n")
    script = Path(sys.executable).with_name("workbench")
    done = subprocess.run(
        [script, "run", "hydra", "--preset", "tiny", "--steps", "3", "--set", "sequence=16"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# Clocks

CLOCKS = """
import time, torch
class Own(torch.nn.Linear):
    def forward(self, x):
        time.perf_counter_ns = time.perf_counter = lambda: 7
        torch.cuda.Event.elapsed_time = lambda *_: 1e-6
        return super().forward(x)
torch.cuda.synchronize = time.monotonic = time.time = lambda *_: 0.0
def build():
    return Own(3, 3), lambda batch: torch.randn(batch, 3)
"""


def test_a_file_that_replaces_clocks_changes_no_time_and_is_reported(runner, write):
    since = len(runner.messages)
    runner.start(owned(write(CLOCKS), "forward"), seconds=0.3)
    assert runner.finish().reason == "done", runner.describe()
    segment = runner.session.segments[-1]
    assert all(0 < ms < 1e5 for ms in segment.steps["wall_ms"])
    warnings = {
        name
        for message in runner.messages[since:]
        if isinstance(message, protocol.Note) and "replaced" in message.text
        for name in message.text.split("replaced ")[1].split(":")[0].split(", ")
    }
    assert {
        "time.perf_counter_ns",
        "time.time",
        "time.monotonic",
        "torch.cuda.synchronize",
    } <= warnings
