"""Scripts in the style of public ones run unchanged under ``workbench run -- COMMAND``."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from sessions.model import Phase
from sessions.studies import breakdown
from sessions.verdicts import statistics
from workbench.cli import main

PUBLIC = Path(__file__).parent / "public"


def test_a_gpt_training_loop_becomes_an_ordinary_session(run, capfd):
    """Steps, input wait, compiles, evidence, telemetry and memory, and what commands make of it."""
    script = (PUBLIC / "train_gpt.py", "--max-iters", 80, "--accumulation", 2)
    result = run("run", "--toggle", "workers=0", "--toggle", "tf32=on", script=script)
    assert result.code == 0, result.err
    assert "iter 60: loss" in result.out
    assert "waiting for input:" in result.err and "% of the mean step (" in result.err

    session = result.session
    (segment,) = session.segments
    assert segment.configuration.title == session.title == "train_gpt.py"
    assert len(segment.steps["t_s"]) == 80  # optimizer steps, not micro-batches
    assert np.all(np.diff(segment.steps["t_s"]) > 0)
    assert statistics.steady(segment).sum() > 10
    assert np.all(segment.steps["wall_ms"] > 0)
    assert np.nanmin(segment.steps["allocated"]) > 1 << 20
    assert segment.ledger["exit_code"] == 0
    assert 0 < segment.ledger["input_wait_share"] < 1
    assert len(segment.metrics["input_wait"].table["t_s"]) >= 1
    evidence = {row.toggle: (row.status, row.text) for row in segment.evidence}
    assert evidence["workers"][0] == "no effect"  # the loader has none
    assert evidence["tf32"][0] == "no effect"
    assert session.environment["torch"]
    (study,) = breakdown.profiles(session)
    kinds = breakdown.by(study, "kind")
    assert kinds[breakdown.INPUT_WAIT][1] > 0

    assert main(["info", str(result.path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)
    assert main(["info", str(result.path), "--command"]) == 0
    command = capfd.readouterr().out
    assert "CAUTION" in command
    assert "--toggle workers=0 -o" in command
    assert "train_gpt.py --max-iters 80 --accumulation 2" in command
    assert main(["compare", str(result.path), str(result.path)]) == 0
    table = result.path.with_suffix(".md")
    assert main(["export", str(result.path), "--table", "segments", "-o", str(table)]) == 0
    assert "train_gpt.py" in table.read_text()


@pytest.mark.slow
def test_a_compiled_gpt_tells_when_it_was_compiled(run):
    result = run("run", script=(PUBLIC / "train_gpt.py", "--max-iters", 40, "--compile"))
    (segment,) = result.session.segments
    assert Phase.COMPILE in {span.phase for span in segment.phases}
    assert segment.steps["phase"][0] == Phase.COMPILE
    assert segment.ledger["graphs"] >= 1


@pytest.mark.parametrize(
    ("name", "package"),
    [("train_trainer.py", "transformers"), ("train_lightning.py", "lightning")],
)
def test_a_trainer_runs_unchanged(run, name, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `uv run --extra trainers` has it")
    result = run("run", "--toggle", "workers=0", script=(PUBLIC / name,))
    assert result.code == 0, result.err
    (segment,) = result.session.segments
    assert len(segment.steps["t_s"]) >= 30
    assert "loss" in " ".join(segment.metrics)  # the callback records what the trainer logs
    assert {row.status for row in segment.evidence} == {"effective"}
