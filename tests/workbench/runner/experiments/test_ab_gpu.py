"""A comparison on a GPU: clocks are known, cycles confirm, captured arms are checked as run."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from sessions.model import Phase
from workbench import protocol

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def wide(small):
    """Return a configuration with steps of some milliseconds, so that the GPU is timed."""
    return msgspec.structs.replace(
        small, model={}, preset="tiny", settings={"batch": 16, "sequence": 256}
    )


def compare(runner, base, other, **options):
    runner.send(protocol.Compare(base=base, other=other, **{"budget_s": 10.0, **options}))
    assert runner.finish().reason == "done", runner.describe()
    return runner.session.comparisons[-1]


def test_identical_arms_are_the_same_in_time_and_in_cycles(runner, wide):
    comparison = compare(runner, wide, wide)
    assert comparison.verdict in ("SAME", "UNDECIDED")
    assert comparison.facts["pairs"] >= 8
    assert sum(clock > 0 for clock in comparison.clocks_mhz) > 0.9 * len(comparison.clocks_mhz)
    ratio, low, high = comparison.facts["cycles"]
    assert low < ratio < high


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_captured_arms_in_bf16_are_faster_and_right(runner, wide, workload):
    adamw = {"adamw": "fused"} if workload == "train" else {}
    base = msgspec.structs.replace(wide, workload=workload, toggles=adamw)
    toggles = {**adamw, "precision": "amp_bf16", "triton": "on", "cuda_graphs": "on"}
    comparison = compare(runner, base, msgspec.structs.replace(base, toggles=toggles))
    assert comparison.verdict == "FASTER"
    for arm in ("0", "1"):
        assert comparison.facts["numerics"][arm]["reference"] in ("float64", "float32")
        assert comparison.facts["numerics"][arm]["ok"], comparison.facts["numerics"][arm]["text"]


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_captured_arms_are_built_again_and_their_memory_comes_back(runner, wide, workload):
    toggles = {"cuda_graphs": "on", **({"adamw": "fused"} if workload == "train" else {})}
    captured = msgspec.structs.replace(wide, workload=workload, toggles=toggles)
    first = len(runner.session.segments)
    comparison = compare(runner, captured, captured, budget_s=12.0, build_count=5)
    assert comparison.verdict in ("SAME", "UNDECIDED")
    assert comparison.facts["builds"] >= 3 and comparison.low <= 1 <= comparison.high
    assert not comparison.facts["rebuilt_each_block"]
    for segment in runner.session.segments[first:]:
        steady = segment.steps["phase"] == Phase.STEADY
        early, *_, late = segment.steps["allocated"][steady]
        assert late < 1.2 * early + (64 << 20), "each build frees the one before"


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_a_run_with_graphs_returns_to_its_eager_baseline_and_back(runner, wide, workload):
    toggles = {"adamw": "fused"} if workload == "train" else {}
    eager = msgspec.structs.replace(wide, workload=workload, toggles=toggles)
    runner.send(protocol.Start(configuration=eager, pairing_share=0.2))
    runner.until_steps(60)
    runner.send(protocol.Apply(toggles={"cuda_graphs": "on"}))
    while runner.until(protocol.Judged).judgement.pairs < 8:
        pass
    runner.finish(protocol.Stop())
    comparison = runner.session.comparisons[-1]
    base, other = (runner.session.segments[at] for at in comparison.facts["segments"])
    assert comparison.facts["background"] and comparison.facts["pairs"] >= 8
    assert (other.steps["phase"] == Phase.STEADY).mean() > 0.5
    earlier = min(n[n > 0].min() for n in (base.steps["block"], other.steps["block"])) - 1
    for at, arm in enumerate(comparison.order):
        steps = (base, other)[arm].steps
        times = steps["gpu_ms"][steps["block"] - earlier == at + 1]
        assert np.median(times) == pytest.approx(comparison.medians_ms[at], rel=1e-4)
