"""AdaAttn's benchmark suite: all four categories are asked for, and what failed is a row too."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import wire_samples

from sessions.model import Columns, Phase, Segment, Session
from sessions.schema import STEP_COLUMNS
from workbench import protocol
from workbench.claims._adaattn_suite import CATEGORIES, Suite, planned
from workbench.cli import main
from workbench.runner.catalogue import catalogue
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.resolve import resolve


@pytest.fixture(scope="module")
def here() -> protocol.Catalogue:
    import torch

    return catalogue(torch.device("cpu"), 0.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_category_is_asked_for_and_can_be_run(here, device):
    import torch

    suite = planned(msgspec.structs.replace(here, device=device), 1.0)
    assert [category for category in CATEGORIES if any(p.category == category for p in suite)] == [
        *CATEGORIES
    ]
    for planned_command in suite:
        command = planned_command.command
        assert protocol.decode_command(protocol.encode(command)) == command
        if device == "cpu":
            base = command.base if isinstance(command, protocol.Attribute) else None
            require_unblocked(resolve(base or command.configuration, torch.device("cpu")))
            assert base is None or len(planned_command.titles) == 1 + len(command.toggles)


def measured(command, ms) -> Segment:
    steps = Columns(STEP_COLUMNS)
    columns = {name: np.full(len(ms), np.nan) for name in STEP_COLUMNS}
    columns |= {"t_s": np.arange(len(ms)), "phase": np.full(len(ms), int(Phase.STEADY))}
    columns |= {"wall_ms": np.asarray(ms), "peak": np.full(len(ms), 3.0 * 2**20)}
    steps.append(columns)
    ledger = {"tokens_per_step": 128}
    return Segment(0, command.configuration, "", ledger=ledger, steps=steps)


def test_rows_have_mean_deviation_and_throughput_and_failures_their_reason():
    catalogue = wire_samples.catalogue()
    suite, session = Suite(1.0), Session()
    session.telemetry["cpu"] = {"t_s": np.arange(9.0), "busy": np.full(9, 40.0)}
    list(suite.begin(catalogue, session))
    first = suite.next(catalogue)
    session.segments.append(measured(first, [2.0, 4.0, 6.0]))
    suite.next(catalogue)
    list(suite.on_message(protocol.Failure(kind="out-of-memory", sentence="Out of memory: 3 GiB.")))
    assert suite.on_runner_lost(), "the others are still to come"
    table = suite.table()
    names = [column.name for column in table.columns]
    row, failed = (dict(zip(names, cells, strict=True)) for cells in table.rows)
    assert (row["mean"], row["std"], row["steps"]) == (4.0, 2.0, 3)
    assert (row["peak memory"], row["utilization"]) == (3.0, 40.0)
    assert row["tokens/s"] == pytest.approx(32_000)
    assert failed["note"] == "Out of memory: 3 GiB." and failed["mean"] is None
    assert failed["peak memory"] is None


def test_only_the_document_that_has_a_suite_runs_one(capsys):
    assert main(["reproduce", "hydra", "--suite"]) == 2
    assert "only adaattn has a benchmark suite" in capsys.readouterr().err
