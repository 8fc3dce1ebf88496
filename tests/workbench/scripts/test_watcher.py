"""The watcher of a script: what recordings become, with a recording that a test writes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

from runner_driver import Driver

from sessions.model import Phase
from workbench import protocol
from workbench.instrument.recording import ENDED
from workbench.runner.script.host import resident_bytes
from workbench.scripts.configuration import configuration_of
from workbench.scripts.plan import WATCHER

MS = 1_000_000
ARGV = ("python", "train.py")


@pytest.fixture
def watcher():
    driver = Driver(command=WATCHER)
    driver.until(protocol.Catalogue)
    yield driver
    driver.close()


def watch(watcher: Driver, folder: Path, entries: list[dict]) -> None:
    """Let the watcher read these entries of a script that has ended with exit code 3."""
    (folder / "1.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    (folder / ENDED).write_text("3")
    configuration = configuration_of(ARGV, {"tf32": "on", "workers": "2"})
    watcher.send(protocol.Script(configuration=configuration, label="train", folder=str(folder)))
    watcher.finish()


def steps(start_ns: int, count: int, gpu_ms: float | None = None) -> list[list]:
    """Return steps of 20 ms, 5 of which wait for input."""
    return [
        [start_ns + 20 * MS * i, start_ns + 20 * MS * (i + 1), 5 * MS, gpu_ms] for i in range(count)
    ]


def test_compiles_evidence_metrics_and_errors_find_their_place(watcher, tmp_path):
    start = time.perf_counter_ns()
    compiled = start + 400 * MS
    watch(
        watcher,
        tmp_path,
        [
            {"pid": 1 << 30, "rank": "0"},
            {"torch": "2.15"},
            {"facts": {"torch": "2.15", "triton": "3.9"}},
            {"memory": [100.0, 200.0, 300.0]},
            {"evidence": [["tf32", "on", "effective", "it is True"]]},
            {"rows": steps(start, 20, 19.0)},
            {"compiled": [["forward", 1, ""], ["forward", 1, "0/1: tensor 'x' size mismatch"]]},
            {"rows": [["compile", compiled, compiled + 9 * MS], *steps(compiled, 20, 18.0)]},
            {"values": {"train/loss": 2.5}, "at_ns": compiled},
            {"error": "RuntimeError: odd"},
            {"error": "RuntimeError: odd"},
        ],
    )
    session = watcher.session
    (segment,) = session.segments
    phases = segment.steps["phase"]
    assert len(phases) == 40
    assert phases[19] == Phase.STEADY
    assert phases[20] == Phase.COMPILE
    assert phases[21] == Phase.WARM_UP
    assert phases[39] == Phase.STEADY
    assert np.all(segment.steps["peak"] == 300.0)
    assert set(segment.steps["gpu_ms"]) == {19.0, 18.0}
    assert {span.phase for span in segment.phases} >= {Phase.COMPILE, Phase.STEADY}
    assert segment.metrics["train_loss"].table["values"].item() == 2.5
    assert segment.ledger["recompiles"] == 1
    assert segment.ledger["graphs"] == 2
    assert segment.ledger["exit_code"] == 3
    assert segment.ledger["input_wait_share"] == pytest.approx(0.25)
    assert [(row.toggle, row.status) for row in segment.evidence] == [
        ("tf32", "effective"),
        ("workers", "unknown"),
    ]
    texts = [event.text for event in session.events]
    assert texts.count("a part of the script is not recorded: RuntimeError: odd") == 1
    assert "recompiled forward: tensor 'x' size mismatch" in texts
    assert session.environment["triton"] == "3.9"
    (study,) = session.studies
    assert list(study.tables["kernels"]["us"]) == pytest.approx([5000, 15000])


def test_a_segment_continues_with_another_process(watcher, tmp_path):
    for block in (1, 2):
        folder = tmp_path / str(block)
        folder.mkdir()
        rows = {"rows": steps(time.perf_counter_ns(), 10)}
        (folder / "1.jsonl").write_text(f"{json.dumps({'pid': 1 << 30})}\n{json.dumps(rows)}\n")
        (folder / ENDED).write_text("0")
        watcher.send(
            protocol.Script(
                configuration=configuration_of(ARGV, {}),
                label="A",
                folder=str(folder),
                segment=None if block == 1 else 0,
                block=block,
            )
        )
        watcher.finish()
    (segment,) = watcher.session.segments
    assert segment.steps["block"].tolist() == [1] * 10 + [2] * 10
    assert len(watcher.session.studies) == 1


def test_a_process_that_has_just_ended_has_unknown_memory():
    """Its parent has not read its exit code yet."""
    with subprocess.Popen(["true"]) as ended:
        process = psutil.Process(ended.pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert resident_bytes(process) is None


def notes(watcher: Driver) -> list[str]:
    """Return why no steps were measured, if that was reported."""
    sent = [message.text for message in watcher.messages if isinstance(message, protocol.Note)]
    return [text for text in sent if "steps were measured" in text.lower()]


def test_cancel_ends_the_watch_and_not_the_watcher(watcher, tmp_path):
    configuration = configuration_of(ARGV, {})
    command = protocol.Script(configuration=configuration, label="A", folder=str(tmp_path))
    watcher.send(command)
    watcher.until_state("running")
    assert watcher.finish(protocol.Cancel()).reason == "cancelled"
    assert not notes(watcher)  # a script that still runs may make its steps later
    (tmp_path / ENDED).write_text("0")
    watcher.send(command)
    assert watcher.finish().reason == "done"
    assert notes(watcher)
