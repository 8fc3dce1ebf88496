"""Who may import whom, and what every file of the project keeps to."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hang_limit import HANG_S

ROOT = Path(__file__).parent.parent
PACKAGES = ("kernels", "models", "sessions", "workbench")
TOP_LEVEL = {
    *PACKAGES,
    *("tests", ".ci", ".gitignore", "LICENSE", "README.md", "pyproject.toml"),
}
LONGEST = 500  # lines of a file
MOST_FILES = 20  # Python files of a folder, more of which nobody reads through

# Folders whose files are alike, one for each thing, and the tests of such folders.
REGISTRIES = {
    "workbench/commands",
    "workbench/plots",
    "workbench/runner/toggles",
    "workbench/ui/panels",
    "tests/workbench/commands",
    "tests/workbench/plots",
    "tests/workbench/runner/toggles",
}

QT = "PySide6 pyqtgraph"
INSTRUMENT = "workbench.instrument"

# What a module may import: of the project | of the libraries; the standard library is free. The
# row is the longest name that the module begins with, and a name stands for all that begins with
# it; ".x" is short for workbench.x. Peers are other libraries' kernels, to compare with. The
# runner's rows are in layers: each needs only itself and rows above it.
MAY_IMPORT = """
kernels      kernels                                           | torch triton filelock platformdirs
kernels.measure.peers kernels | flash_attn fla liger_kernel mamba_ssm quack torch
models       models kernels                                    | torch
models.configs models.configs models.layers models.errors      |
models.costs models.costs models.configs models.layers models.execution kernels | torch
models.execution models.execution models.errors kernels        | torch
sessions     sessions                     | numpy scipy h5py msgspec filelock platformdirs
sessions.notebook sessions                                     | numpy pandas
.state_folder sessions                                         |
.state_files sessions .state_folder                            | msgspec
.crash_log   .state_folder                                     |
.interrupts                                                    |
.descendants                                                   |
.plugins                                                       |
.packaging                                                     | hatchling
.exit_reasons                                                  |
.protocol    .protocol .plugins sessions                                | msgspec
.titles      .protocol sessions                                |
.client.runner_command                                         |
.git                                                           |
.commit_checkout .git                                          |
.trackers    sessions                                          | tensorboard trackio wandb
.alternating_runners sessions .protocol .client .calibration .interrupts |
.client.throttle                                               |
.client      .client .protocol .titles .exit_reasons .descendants .interrupts .state_folder \
sessions | numpy msgspec
.calibration sessions .protocol .state_folder .state_files     | msgspec
.ceilings    sessions .state_folder .state_files               |
.claims      .claims sessions .protocol .plugins                        | numpy scipy msgspec
.presets     sessions .protocol                                | msgspec
.theming     .theming                                          | PySide6 pyqtgraph
.charts      .charts .theming sessions                         | PySide6 pyqtgraph numpy
.plots       .plots .charts .theming .plugins sessions         | PySide6 pyqtgraph numpy
.plot_export .plots .charts .theming sessions                  | PySide6 numpy
.report      .report .plot_export .plots .theming .plugins sessions | jinja2
.ui .ui .report .plot_export .plots .charts .theming .claims sessions .protocol .client \
.calibration .presets .plugins .titles .interrupts .crash_log | PySide6 pyqtgraph numpy msgspec
.ui.connection .ui.connection .protocol .client                | PySide6
.ui.state .ui.state .ui.connection .ui.process.thread_pool .theming.theme .protocol .client \
.charts.drawn .titles sessions | PySide6 msgspec
.ui.controllers .ui.controllers .ui.state .ui.settings .theming .claims .calibration .presets \
.plugins .protocol .client.recorder sessions | PySide6 msgspec
.ui.panels .ui.panels .ui.controllers .ui.state .ui.dialogs .ui.menus .ui.process .charts \
.plot_export .plots .theming .claims .protocol .client.throttle .titles .crash_log sessions | \
PySide6 numpy msgspec
.notebook    .plot_export .plots .titles sessions              |
.commands .commands .alternating_runners .commit_checkout .git .trackers .plugins .claims .ui \
.charts .plot_export .plots .theming sessions .protocol .client .calibration .ceilings .presets \
.report .titles .interrupts .state_folder .instrument .scripts | msgspec rich shtab PySide6
.instrument  .instrument                                       |
.scripts     .scripts .instrument sessions .protocol .interrupts .descendants | numpy
.cli         sessions .plugins .commands .ui.app .client.runner_command .interrupts .crash_log |
.__main__    .cli .interrupts .crash_log                       |
.__init__                                                      |
.runner.__init__                                               |
.runner.components .runner.components kernels models | torch
.runner.foreign .runner.foreign kernels | torch transformers
.runner.revision .git sessions |
.runner.source_lines | torch
.runner.structures | torch
.runner.training .runner.training models | torch
.runner.training.optimizers | torch torchao bitsandbytes
.runner.triton_cache |
.runner.wire .descendants .protocol |
.runner.instruments .runner.instruments .protocol .runner.revision .runner.wire kernels models \
sessions | psutil pynvml torch
.runner.environment .runner.instruments kernels sessions | pynvml torch
.runner.script .runner.script .instrument .protocol .runner.instruments .runner.wire sessions | \
psutil pynvml
.runner.failures .protocol .runner.environment .runner.source_lines .runner.triton_cache kernels \
models sessions | msgspec torch
.runner.loading .runner.failures | torch
.runner.batches .runner.failures .runner.loading .runner.structures | torch
.runner.user_models .runner.user_models .BUNDLED .runner.environment .runner.failures \
.runner.instruments .runner.structures kernels models sessions | numpy torch
.runner.user_models.hf_model .runner.environment .runner.failures .runner.instruments models \
sessions | torch transformers
.runner.decoding .runner.decoding .protocol .runner.batches .runner.environment .runner.failures \
.runner.instruments .runner.wire models sessions | msgspec torch
.runner.model_state .runner.model_state .runner.structures .runner.user_models models | numpy torch
.runner.workloads .runner.workloads .plugins .protocol .runner.batches .runner.decoding models \
sessions | torch
.runner.interfaces .protocol .runner.batches .runner.workloads kernels models sessions | torch
.runner.data .runner.batches .runner.environment .runner.failures .runner.interfaces \
.runner.loading .runner.structures models | torch
.runner.distributed .runner.distributed .descendants .exit_reasons .protocol .runner.batches \
.runner.environment .runner.failures .runner.instruments .runner.interfaces .runner.structures \
.runner.training .runner.workloads kernels models sessions | msgspec psutil torch
.runner.profiling .runner.profiling .runner.batches .runner.interfaces .runner.source_lines \
.runner.structures .runner.workloads kernels models sessions | torch
.runner.roofline .runner.roofline .ceilings .protocol .runner.environment .runner.interfaces \
.runner.wire kernels sessions | msgspec torch
.runner.variants .runner.variants .runner.batches .runner.data .runner.decoding \
.runner.distributed .runner.failures .runner.instruments .runner.interfaces .runner.loading \
.runner.model_state \
.runner.profiling .runner.roofline .runner.training .runner.workloads kernels models sessions | \
msgspec torch
.runner.numerics .runner.numerics .runner.batches .runner.failures .runner.instruments \
.runner.interfaces .runner.model_state .runner.profiling .runner.roofline .runner.structures \
.runner.training .runner.user_models .runner.variants .runner.workloads kernels models sessions | \
torch
.runner.toggles .runner.toggles .plugins .protocol .runner.batches .runner.distributed \
.runner.failures .runner.foreign .runner.instruments .runner.interfaces .runner.loading \
.runner.model_state .runner.profiling .runner.roofline .runner.structures .runner.training \
.runner.user_models .runner.variants.assembly .runner.variants.build .runner.variants.compiles \
.runner.variants.fake_step .runner.variants.observed .runner.variants.offload \
.runner.variants.weights .runner.workloads kernels models sessions | msgspec torch
.runner.building .runner.building .runner.data .runner.distributed .runner.failures \
.runner.instruments .runner.interfaces .runner.numerics .runner.profiling .runner.revision \
.runner.toggles .runner.training .runner.user_models .runner.variants .runner.workloads kernels \
models sessions | msgspec torch
.runner.config .runner.config .plugins .protocol .runner.failures .runner.interfaces \
.runner.toggles .runner.user_models .runner.wire .runner.workloads kernels models sessions | \
msgspec torch
.runner.failed_options .runner.failures .runner.interfaces .runner.toggles models sessions |
.runner.catalogue .plugins .protocol .runner.config .runner.environment .runner.toggles \
.runner.user_models .runner.workloads kernels models sessions | torch
.runner.context .protocol .runner.building .runner.config .runner.distributed .runner.failures \
.runner.instruments .runner.interfaces .runner.roofline .runner.toggles .runner.variants \
.runner.wire sessions | torch
.runner.export .runner.export .runner.batches .runner.config .runner.data .runner.failures \
kernels models sessions | msgspec onnxruntime torch
.runner.export._onnx_operators | onnxscript torch
.runner.rank_worker .descendants .runner.building .runner.config .runner.distributed \
.runner.environment .runner.failures .runner.instruments .runner.interfaces .runner.model_state \
.runner.numerics .runner.toggles .runner.variants .runner.wire | torch
.runner.suggested_fixes .protocol .runner.config .runner.failures .runner.interfaces \
.runner.toggles sessions | msgspec torch
.runner.experiments .runner.experiments .protocol .runner.batches .runner.building .runner.config \
.runner.context .runner.decoding .runner.environment .runner.failed_options .runner.failures \
.runner.instruments .runner.interfaces .runner.numerics .runner.profiling .runner.suggested_fixes \
.runner.toggles .runner.training .runner.variants .runner.wire .runner.workloads kernels models \
sessions | msgspec torch
.runner.engine .plugins .protocol .runner.catalogue .runner.config .runner.context \
.runner.experiments .runner.failures .runner.instruments .runner.suggested_fixes \
.runner.triton_cache .runner.wire kernels sessions | torch
.runner.main .descendants .protocol .runner.engine .runner.profiling .runner.wire |
.runner.__main__ .runner.distributed .runner.main |
"""

# What a fresh process never holds, whatever is imported by whatever, after it has imported every
# module of a package. The packages of one row are imported one after the other.
GPU = "torch triton kernels models workbench.runner"
COMPILER = "torch._dynamo torch._inductor"  # seconds at every start, also where nothing is compiled
NEVER_LOADED = [
    [
        ("kernels", f"{QT} {COMPILER} sessions models workbench"),
        ("models", f"{QT} {COMPILER} sessions workbench"),
        (
            "workbench.runner",
            f"{QT} {COMPILER} workbench.ui workbench.commands torchao bitsandbytes",
        ),
    ],
    [
        ("sessions", f"{GPU} {QT} workbench"),
        ("workbench.protocol", f"{GPU} {QT}"),
        ("workbench.client", f"{GPU} {QT}"),
        ("workbench.claims", f"{GPU} {QT}"),
        ("workbench.presets", f"{GPU} {QT}"),
        ("workbench.scripts", f"{GPU} {QT}"),
        ("workbench.cli", f"{GPU} {QT}"),
        ("workbench.commands", f"{GPU} {QT}"),
        ("workbench.ui.state", f"{GPU} PySide6.QtWidgets pyqtgraph"),
        ("workbench.ui.window", GPU),
        ("workbench.ui", GPU),
    ],
]

IMPORT_IN_TURN = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    print(name, *sys.modules)
"""


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def import_graph(texts: dict[str, str]) -> dict[str, set[str]]:
    """Return the modules that each module imports, from the source texts by module name."""
    graph: dict[str, set[str]] = {}
    for module, source in texts.items():
        names = {name for _, name in imported(source)}
        # ``from package import name`` imports the module of this name, if there is one.
        targets = {name if name in texts else name.rpartition(".")[0] for name in names}
        graph[module] = (targets & texts.keys()) - {module}
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that one module imports, directly or through others."""
    visited: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - visited:
            visited.add(target)
            waiting.append(target)
    return visited


def import_cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the groups of modules that import each other."""
    below = {module: reachable(graph, module) for module in graph}
    return {
        frozenset(target for target in below[module] if module in below[target])
        for module in graph
        if module in below[module]
    }


def rules(table: str) -> dict[str, tuple[str, str]]:
    """Return the rows by module: what it may import of the project, and which libraries."""
    full = re.sub(r"(^|\s)\.", r"\1workbench.", table)
    rows = (re.split(r" *\| *", row) for row in full.strip().splitlines())
    return {row.split()[0]: (" ".join(row.split()[1:]), libraries) for row, libraries in rows}


def begins_with(name: str, allowed: str) -> bool:
    return any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed.split())


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that is imported, wherever it stands in the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def forbidden_imports(module: str, source: str) -> list[str]:
    """Return a sentence for each import that the table does not allow the module."""
    table = rules(MAY_IMPORT)
    rows = [row for row in table if begins_with(module, row)]
    if not rows:
        return [f"{module} has no row in MAY_IMPORT"]
    ours, libraries = table[max(rows, key=len)]
    names = list(imported(source))
    if begins_with(module, INSTRUMENT):  # it is loaded by another name in a script's process
        names = [(line, re.sub(r"^\.+", f"{INSTRUMENT}.", name)) for line, name in names]
    return [
        f"{module}, line {line}: imports {name}; allowed: {ours or 'nothing of the project'}; "
        f"{libraries or 'no library'}"
        for line, name in names
        if not begins_with(name, f"{ours} {libraries} {' '.join(sys.stdlib_module_names)}")
    ] + [
        f"{module}, line {line}: imports {name}, which is private to another package"
        for line, name in names
        if is_private_elsewhere(module, name)
    ]


def is_private_elsewhere(module: str, name: str) -> bool:
    """Return whether a name with an underscore belongs to another package of the project."""
    package, *rest = name.split(".")
    return (
        package in PACKAGES
        and package != module.partition(".")[0]
        and any(part.startswith("_") for part in rest)
    )


def unkept(path: str, source: str) -> list[str]:
    """Return a sentence for each rule that the file itself breaks."""
    broken = []
    if (lines := source.count("\n")) > LONGEST:
        broken.append(f"{path} has {lines} lines, at most {LONGEST} are allowed")
    if not path.startswith("tests") and not ast.get_docstring(ast.parse(source)):
        broken.append(f"{path} has no docstring that says what is in it")
    return broken


def loaded_after_each(packages: list[str]) -> dict[str, list[str]]:
    """Return what ``sys.modules`` of one fresh process holds after each package, in turn."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_IN_TURN, *packages],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}


def test_every_import_is_one_that_the_table_allows():
    sentences = [
        sentence
        for path in sources()
        for sentence in forbidden_imports(module_name(path), path.read_text())
    ]
    assert not sentences, "\n".join(sentences)


def test_a_package_of_the_runner_needs_only_packages_whose_rows_stand_above():
    table = {row: ours for row, (ours, _) in rules(MAY_IMPORT).items() if ".runner." in row}
    rows = list(table)
    for position, row in enumerate(rows):
        needed = {name for name in table[row].split() if ".runner." in name}
        above = " ".join(rows[: position + 1])
        below = {name for name in needed if not begins_with(name, above)}
        assert not below, f"{row} needs {sorted(below)}, whose rows stand below it"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("kernels.rms_norm", "from sessions.model import Scalar"),
        ("kernels.rms_norm", "import PySide6"),
        ("models.hydra", "import triton"),
        ("models.hydra", "def late():\n    from workbench import protocol"),
        ("sessions.model", "import torch"),
        ("sessions.model", "import kernels"),
        ("workbench.protocol", "import workbench.client.journal"),
        ("workbench.client.recorder", "from torch import Tensor"),
        ("workbench.runner.toggles.compile", "from PySide6.QtCore import QObject"),
        (
            "workbench.runner.toggles.compile",
            "if TYPE_CHECKING:\n    from workbench.runner.variants.variant import Variant",
        ),
        (
            "workbench.runner.experiments.run",
            "if TYPE_CHECKING:\n    from workbench.ui import state",
        ),
        ("workbench.ui.panels.build", "from workbench.runner import run"),
        ("workbench.ui.panels.build", "from workbench import runner"),
        ("workbench.plots.box", "from workbench.ui.state.run import RunModel"),
        ("workbench.report.evidence", "from workbench.ui.state import session_files"),
        ("workbench.ui.panels.build", "from workbench.ui.workspace import Workspace"),
        ("workbench.ui.state.session", "from workbench.ui.controllers import verdicts"),
        ("workbench.ui.connection.runner_link", "from workbench.ui.state import run"),
        ("workbench.charts.canvas", "from workbench.plots import PLOTS"),
        ("workbench.commands.run", "import torch"),
        ("workbench.newcomer", "import os"),
        ("workbench.runner.experiments.run", "from kernels._gated import gated"),
        ("workbench.runner.experiments.run", "from kernels import _qk"),
        ("models.hydra", "import kernels._qk_kernels"),
        ("sessions.model", "from . import columns"),
        ("sessions.model", "import sessions_of_another"),
    ],
)
def test_an_import_against_the_rules_is_found(module, line):
    (sentence,) = forbidden_imports(module, f'"""A docstring."""\n{line}\n')
    assert sentence.startswith(module)


def test_no_modules_import_each_other():
    texts = {module_name(path).removesuffix(".__init__"): path.read_text() for path in sources()}
    cycles = [" ".join(sorted(group)) for group in import_cycles(import_graph(texts))]
    assert not cycles, "\n".join(cycles)


def test_a_cycle_through_types_packages_or_functions_is_found():
    texts = {
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b.c",
        "b": "",
        "b.c": "def late():\n    from d import value",
        "d": "from a import name\nfrom b import c",
        "e": "import a",
        "f": "import e",
    }
    assert import_cycles(import_graph(texts)) == {frozenset({"a", "b.c", "d"})}
    assert import_cycles(import_graph({**texts, "d": "import b"})) == set()


@pytest.mark.parametrize("row", NEVER_LOADED, ids=lambda row: row[0][0])
def test_a_fresh_process_loads_nothing_that_a_package_must_do_without(row):
    loaded = loaded_after_each([package for package, _ in row])
    for package, never in row:
        assert package in loaded[package]
        loaded_names = [name for name in loaded[package] if begins_with(name, never)]
        assert not loaded_names, f"importing {package} imports {loaded_names[:5]}"


def test_a_fresh_process_would_show_what_it_loads():
    loaded = loaded_after_each(["workbench.protocol", "workbench.charts.style"])
    assert any(begins_with(name, QT) for name in loaded["workbench.charts.style"])
    assert not any(begins_with(name, QT) for name in loaded["workbench.protocol"])


def test_every_file_has_a_docstring_and_at_most_500_lines():
    paths = [*sources(), *sorted((ROOT / "tests").rglob("*.py"))]
    sentences = [
        sentence
        for path in paths
        for sentence in unkept(str(path.relative_to(ROOT)), path.read_text())
    ]
    assert not sentences, "\n".join(sentences)


def test_a_file_that_is_too_long_or_says_nothing_is_found():
    assert unkept("sessions/a.py", '"""Says."""\n' * LONGEST) == []
    assert "501 lines" in unkept("sessions/a.py", '"""Says."""\n' * (LONGEST + 1))[0]
    assert "501 lines" in unkept("tests/a.py", "\n" * (LONGEST + 1))[0]
    assert "no docstring" in unkept("sessions/a.py", "import os\n")[0]


def crowded(paths: list[Path]) -> list[str]:
    """Return a sentence for each folder that holds too many Python files and is no registry."""
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in paths)
    return [
        f"{folder} holds {count} Python files, at most {MOST_FILES} are allowed: group them by "
        "subject"
        for folder, count in counts.items()
        if count > MOST_FILES and folder not in REGISTRIES
    ]


def test_a_folder_that_is_no_registry_holds_at_most_20_files():
    paths = [*sources(), *(ROOT / "tests").rglob("*.py")]
    assert not crowded(paths), "\n".join(crowded(paths))
    folders = {str(path.parent.relative_to(ROOT)) for path in paths}
    assert folders >= REGISTRIES, f"remove {REGISTRIES - folders} from the registries"


def test_a_crowded_folder_is_found():
    files = [ROOT / "sessions" / f"file_{number}.py" for number in range(MOST_FILES + 1)]
    assert crowded(files[1:]) == []
    assert crowded(files)[0].startswith("sessions holds 21 Python files")
    assert crowded([ROOT / "workbench" / "plots" / path.name for path in files]) == []


def test_the_top_level_holds_what_a_newcomer_is_told_and_no_more():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    assert {path.partition("/")[0] for path in listed.stdout.splitlines()} == TOP_LEVEL
    lines = (ROOT / "README.md").read_text().splitlines()
    folders = {line.split("/")[0] for line in lines if re.match(r"\w+/(\s|$)", line)}
    assert folders == {*PACKAGES, "tests"}
