"""A family whose inputs are no tokens runs, in the real runner, as any other does."""

from __future__ import annotations

import pytest
from runner_driver import Driver

from sessions.model import Configuration
from workbench import protocol


@pytest.fixture
def runner(with_families) -> Driver:
    return with_families


def measuring(workload: str = "train", **changes) -> Configuration:
    return Configuration(family="measuring", preset="tiny", workload=workload, **changes)


@pytest.mark.parametrize("workload", ["forward", "train"])
@pytest.mark.parametrize(
    "toggles",
    [{}, {"precision": "bf16"}, {"precision": "amp_bf16", "rope_cache": "shared"}],
    ids=lambda toggles: "-".join(toggles.values()) or "plain",
)
def test_it_steps_with_every_precision(runner, workload, toggles):
    runner.start(measuring(workload, toggles=toggles), steps=40)
    finished = runner.finish()
    assert (finished.reason, finished.steps) == ("done", 40), runner.describe()
    segment = runner.session.segments[-1]
    assert segment.ledger["parameters"] == 2 * 64 + 24
    assert segment.ledger["tokens_per_step"] == 12
    statuses = {evidence.toggle: evidence.status for evidence in segment.evidence}
    assert statuses.get("precision", "effective") == "effective", segment.evidence


def test_it_learns_from_what_it_draws(runner):
    losses = []
    for steps in (3, 600):
        runner.start(measuring(seed=steps), steps=steps)
        assert runner.finish().reason == "done"
        losses.append(runner.session.segments[-1].ledger["loss"])
    assert losses[1] < 0.5 * losses[0]


def test_a_workload_it_does_not_have_and_a_file_are_mistakes(runner, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"a" * 100)
    for configuration, sentence in (
        (measuring("decode"), "measuring has no workload 'decode'"),
        (measuring(data=str(text)), "measuring generates its own inputs"),
    ):
        runner.start(configuration, steps=1)
        failure = runner.until(protocol.Failure)
        assert failure.kind == "mistake" and sentence in failure.sentence
        assert runner.finish().reason == "failed"
