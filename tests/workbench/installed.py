"""A distribution with plug-ins, installed into a folder as an installer would leave it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

NAME, VERSION = "workbench-extras", "1.2"
FILES = {
    "toggle": '''
"""Enter a block around every step. Counted: 1 more call a step."""
import contextlib
from workbench.runner.toggles import Stage, Toggle, effective, no_effect

entered = []

@contextlib.contextmanager
def _block():
    entered.append(True)
    yield

TOGGLE = Toggle(
    name="extra_block", title="Extra block", help=__doc__, group="Extras", stage=Stage.MEMORY,
    options={"off": "Off", "on": "On"},
    apply=lambda option, build: build.flags.append(_block),
    evidence=lambda option, observed: effective("entered") if entered else no_effect("none"),
)
''',
    "narrow": '''
"""Another model, says the toggle."""
from workbench.runner.toggles import Stage, Toggle, effective

TOGGLE = Toggle(
    name="narrow", title="Narrow", help=__doc__, group="Extras", stage=Stage.MODEL,
    options={"off": "Off", "on": "On"}, apply=lambda option, build: None,
    configure=lambda option, config: {},
    evidence=lambda option, observed: effective("it is narrower"),
)
''',
    "operator": '''
"""Return twice the input."""
import torch
from kernels import Case, Cost, Implementation, Operator, Work
from kernels.core.dispatch import run

def twice(x, *, impl=None):
    """Return twice ``x``."""
    return run(OP, impl, x)

OP = Operator(
    name="twice", function=twice, reference=lambda x: 2 * x,
    implementations={"torch": Implementation(lambda x: 2 * x)},
    inputs=lambda case, device, dtype, seed: {"x": torch.ones(64, device=device, dtype=dtype)},
    cost=lambda x: Cost(Work(2 * x.nbytes, x.numel())),
    cases=(Case("64", {}),), sizes=lambda random: {},
)
''',
    "family": '''
"""HYDRA under another name."""
import dataclasses
from models import FAMILIES

FAMILY = dataclasses.replace(FAMILIES["hydra"], name="hydra_too", title="HYDRA, too")
''',
    "plot": '''
"""Nothing, drawn."""
from workbench.charts.plot import Plot

PLOT = Plot(
    name="nothing", title="Nothing", help=__doc__, draw=lambda canvas, runs, style: None,
    table=lambda runs: {}, can_show=lambda runs: "There is nothing to show.", axis="value",
)
''',
    "section": '''
"""A greeting."""
from workbench.report._section import Section, Words

SECTION = Section(
    name="greeting", title="Greeting", help=__doc__, order=5, nothing="Nobody is there.",
    parts=lambda runs: iter([Words(["Hello from a plug-in."])]), has=lambda session: True,
)
''',
    "command": '''
"""Greet."""
from workbench.commands import Command

def _run(arguments):
    print("hello")
    return 0

COMMAND = Command(name="greet", help=__doc__, arguments=lambda parser: None, run=_run)
''',
    "broken": "raise RuntimeError('no such device')",
    "unlisted": """
import dataclasses
from workbench.runner.toggles.compile import TOGGLE as COMPILE

TOGGLE = dataclasses.replace(COMPILE, name="unlisted", options={"off": 1})
""",
    "rude_command": """
from workbench.commands import Command

def _arguments(parser):
    parser.add_argument("--help")

COMMAND = Command(name="rude", help="", arguments=_arguments, run=lambda arguments: 0)
""",
}
GOOD = {
    "toggles": {"extra_block": "toggle:TOGGLE", "narrow": "narrow:TOGGLE"},
    "operators": {"twice": "operator:OP"},
    "families": {"hydra_too": "family:FAMILY"},
    "plots": {"nothing": "plot:PLOT"},
    "sections": {"greeting": "section:SECTION"},
    "commands": {"greet": "command:COMMAND"},
}
# Group and name of plug-ins that must be skipped: what the entry point names, and the reason.
BROKEN = {
    ("toggles", "absent"): ("no_such_file:TOGGLE", "ModuleNotFoundError: No module named"),
    ("toggles", "compile"): ("unlisted:COMPILE", "'compile' exists already"),
    ("toggles", "raises"): ("broken:TOGGLE", "RuntimeError: no such device"),
    ("toggles", "renamed"): ("toggle:TOGGLE", "the entry point's name is 'renamed', but"),
    ("toggles", "unlisted"): ("unlisted:TOGGLE", "Expected `str`, got `int`"),
    ("operators", "module"): ("operator:torch", "is of type module, not Operator"),
    ("operators", "status"): ("operator:NONE", "AttributeError: module"),
    ("families", "hydra"): ("family:FAMILIES", "is of type dict, not Family"),
    ("plots", "ecdf"): ("plot:__doc__", "is of type str, not Plot"),
    ("commands", "rude"): ("rude_command:COMMAND", "ArgumentError: argument --help: conflicting"),
}


def install(folder: Path, points: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Install the package with these entry points, and return the variables that reach it."""
    package = folder / "workbench_extras"
    package.mkdir(parents=True)
    for name, source in FILES.items():
        (package / f"{name}.py").write_text(source)
    information = folder / f"workbench_extras-{VERSION}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
    )
    lines = []
    for group, targets in points.items():
        lines.append(f"[workbench.{group}]")
        lines += [f"{name} = workbench_extras.{target}" for name, target in targets.items()]
    (information / "entry_points.txt").write_text("\n".join(lines))
    return {"PYTHONPATH": str(folder)}


def everything() -> dict[str, dict[str, str]]:
    """Return the entry points of all plug-ins, good and broken."""
    points = {group: dict(targets) for group, targets in GOOD.items()}
    for (group, name), (target, _) in BROKEN.items():
        points[group][name] = target
    return points
