"""Ranks that torchrun starts bound how many a configuration can use."""

from __future__ import annotations

import pytest
from built import blocked

from sessions.model import Configuration


@pytest.mark.parametrize("ranks", ["2", "4"])
def test_more_ranks_than_were_started_are_blocked(monkeypatch, ranks):
    monkeypatch.setenv("WORLD_SIZE", "2")
    configuration = Configuration(
        family="hydra", preset="tiny", workload="train", settings={"batch": 4, "sequence": 16}
    )
    options = blocked(configuration).get("data_parallel", {})
    reasons = {option: block.reason for option, block in options.items()}
    assert (ranks in reasons) == (ranks == "4")
    if ranks == "4":
        assert reasons[ranks] == "needs 4 ranks, and 2 were started"
