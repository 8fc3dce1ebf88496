"""A comparison on a GPU: clocks are known, cycles confirm, captured arms are checked as run."""

from __future__ import annotations

import msgspec
import pytest

from workbench import protocol

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def wide(small):
    """Steps of some milliseconds, so that the GPU and not the host is timed."""
    return msgspec.structs.replace(
        small, model={}, preset="tiny", settings={"batch": 16, "sequence": 256}
    )


def compare(runner, base, other, **asked):
    runner.send(protocol.Compare(base=base, other=other, **{"budget_s": 10.0, **asked}))
    assert runner.finish().reason == "done", runner.describe()
    return runner.session.comparisons[-1]


def test_identical_arms_are_the_same_in_time_and_in_cycles(runner, wide):
    found = compare(runner, wide, wide)
    assert found.verdict in ("SAME", "UNDECIDED")
    assert found.facts["pairs"] >= 8
    assert sum(clock > 0 for clock in found.clocks_mhz) > 0.9 * len(found.clocks_mhz)
    ratio, low, high = found.facts["cycles"]
    assert low < ratio < high


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_captured_arms_in_bf16_are_faster_and_right(runner, wide, workload):
    adamw = {"adamw": "fused"} if workload == "train" else {}
    base = msgspec.structs.replace(wide, workload=workload, toggles=adamw)
    toggles = {**adamw, "precision": "amp_bf16", "triton": "on", "cuda_graphs": "on"}
    found = compare(runner, base, msgspec.structs.replace(base, toggles=toggles))
    assert found.verdict == "FASTER"
    for arm in ("0", "1"):
        assert found.facts["numerics"][arm]["reference"] in ("float64", "float32")
        assert found.facts["numerics"][arm]["ok"], found.facts["numerics"][arm]["text"]
