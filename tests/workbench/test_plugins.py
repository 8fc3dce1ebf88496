"""Plug-ins of another distribution take part, and a broken one is named and skipped."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hang_limit import HANG_S
from installed import BROKEN, GOOD, NAME, VERSION, everything, install
from runner_driver import Driver
from synthetic import gpu_session

from sessions.model import Configuration
from sessions.storage import hdf5
from sessions.verdicts import work
from workbench import protocol

IN_RUNNER = ("toggles", "operators", "families")


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """Return a folder with every plug-in, as variables of a process."""
    return install(tmp_path_factory.mktemp("installed"), everything())


@pytest.fixture(scope="module")
def driver(environment, tmp_path_factory):
    """Return the real runner, idle, with every plug-in installed."""
    state = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    driver = Driver(environment={**environment, **state})
    driver.until_state("idle")
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def catalogue(driver) -> protocol.Catalogue:
    return next(m for m in driver.messages if isinstance(m, protocol.Catalogue))


def workbench(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process that has the plug-ins."""
    return subprocess.run(
        [sys.executable, "-m", "workbench", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=HANG_S,
    )


def test_the_catalogue_has_the_plug_ins_that_work(catalogue):
    assert "extra_block" in [toggle.name for toggle in catalogue.toggles]
    assert "hydra_too" in [family.name for family in catalogue.families]
    assert "twice" in catalogue.operators
    working = {(p.group, p.name) for p in catalogue.plugins if not p.problem}
    assert working == {(group, name) for group in IN_RUNNER for name in GOOD[group]}


@pytest.mark.parametrize(("group", "name"), [key for key in BROKEN if key[0] in IN_RUNNER])
def test_a_broken_plug_in_is_named_with_the_reason_and_its_distribution(group, name, catalogue):
    (plugin,) = [p for p in catalogue.plugins if (p.group, p.name) == (group, name)]
    assert BROKEN[group, name][1] in plugin.problem
    assert plugin.distribution == f"{NAME} {VERSION}"


def test_every_broken_plug_in_of_the_runner_is_a_warning_of_the_session(driver, catalogue):
    warnings = [event.text for event in driver.session.events if event.kind == "warning"]
    expected = [plugin.sentence for plugin in catalogue.plugins if plugin.problem]
    assert warnings == expected and len(expected) == 8


def test_the_environment_names_a_toggle_of_a_plug_in_that_makes_another_model(driver):
    assert driver.session.environment[work.FURTHER_TOGGLES] == "narrow"


def test_a_run_uses_a_family_a_toggle_and_an_operator_of_a_plug_in(driver):
    configuration = Configuration(
        family="hydra_too",
        preset="tiny",
        workload="forward",
        settings={"batch": 1, "sequence": 16},
        toggles={"extra_block": "on"},
    )
    driver.start(configuration, steps=60)
    driver.until(protocol.Finished)
    evidence = {item.toggle: item for item in driver.session.segments[-1].evidence}
    assert evidence["extra_block"].status == "effective"
    driver.send(
        protocol.Bench(
            operators=["twice"], implementations=["torch"], forward_only=True, budget_s=0.2
        )
    )
    finished = driver.until(protocol.Finished)
    assert finished.reason == "done", driver.describe()


def test_the_command_line_runs_a_command_of_a_plug_in_and_names_a_broken_one(environment):
    done = workbench("greet", environment=environment)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"workbench: plug-in 'rude' of {NAME} {VERSION} (workbench.commands) was skipped: "
    )


def test_a_report_has_the_section_of_a_plug_in_and_a_broken_plot_is_named(environment, tmp_path):
    session, page = tmp_path / "session.h5", tmp_path / "page.html"
    hdf5.save(gpu_session(1, 30), session)
    words = ("report", str(session), "--sections", "greeting", "-o", str(page))
    done = workbench(*words, environment=environment)
    assert done.returncode == 0, done.stderr
    assert "Hello from a plug-in." in page.read_text()
    assert "plug-in 'ecdf'" in done.stderr and "is of type str, not Plot" in done.stderr


def test_doctor_lists_all_plug_ins_and_what_is_wrong_with_them(environment, catalogue, tmp_path):
    answer = tmp_path / "catalogue.json"  # of the real runner, so that it need not start again
    answer.write_bytes(protocol.encode(catalogue))
    runner = shlex.join(["sh", "-c", f"cat {shlex.quote(str(answer))}; cat > /dev/null"])
    done = workbench("doctor", "--json", "--runner", runner, environment=environment)
    assert done.returncode == 0, done.stderr
    checks = [c for c in json.loads(done.stdout)["checks"] if c["name"] == "plug-in"]
    assert [c["state"] for c in checks].count("skipped") == len(BROKEN)
    assert [c["state"] for c in checks].count("ok") == sum(map(len, GOOD.values()))
    for (_, name), (_, reason) in BROKEN.items():
        assert any(f"plug-in {name!r}" in c["text"] and reason in c["text"] for c in checks), name


def test_the_window_has_a_plot_of_a_plug_in_and_notes_the_broken_ones(environment, tmp_path):
    script = f"""
import sys
from PySide6.QtWidgets import QApplication
sys.path.insert(0, {str(Path(__file__).parent / "ui")!r})
from workbench.client.runner_process import Runner
from workbench.ui import app
from workbench.ui.controllers.plugin_notes import PluginNotes
from workbench.ui.workspace import Workspace
import workbench.plots
application = QApplication([])
workspace = Workspace(launch=lambda journal: Runner(
    journal, [sys.executable, {str(Path(__file__).parent / "ui" / "fake_runner.py")!r}]))
PluginNotes(workspace.session, workspace.run, workspace.configuration, workspace)
workspace.run.stateChanged.connect(lambda: workspace.run.state == "idle" and application.quit())
workspace.run.start_runner()
application.exec()
print([event.text for event in workspace.session.shown.events if event.kind == "warning"])
print("nothing" in workbench.plots.PLOTS)
workspace.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment, "FAKE_RUNNER_HOLD": str(tmp_path / "hold")},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    warnings, listed = done.stdout.splitlines()
    assert listed == "True"
    assert "plug-in 'ecdf'" in warnings and "was skipped" in warnings
