"""On a GPU: memory that does not suffice is a point, and the peak is that of the point alone."""

from __future__ import annotations

import pytest

from sessions.model import Configuration
from sessions.studies import sweep
from workbench import protocol

pytestmark = pytest.mark.gpu


def test_a_size_that_outgrows_the_gpu_is_a_point_and_the_next_has_all_the_memory(with_families):
    faulty = Configuration(family="faulty", preset="tiny", settings={"batch": 1, "sequence": 16})
    axes = {"model.fault": ["none", "fill-gpu"]}
    with_families.send(protocol.Sweep(base=faulty, axes=axes, seconds=0.3))
    assert with_families.finish().reason == "done", with_families.describe()
    table = with_families.session.studies[-1].tables[sweep.POINTS]
    outcomes = dict(zip(table["x"], table["outcome"], strict=True))
    assert outcomes == {"none": "measured", "fill-gpu": "out of memory"}


def test_peaks_are_of_each_point_alone_whatever_came_before(runner):
    base = Configuration(
        family="hydra", preset="small", workload="forward", settings={"batch": 4, "sequence": 512}
    )
    sizes = [1, 2, 4, 8, 16, 32]
    arms = [{"precision": "bf16"}, {"precision": "fp32"}]
    peaks = []
    for seed in (0, 1):  # two orders
        runner.send(
            protocol.Sweep(
                base=base, axes={"settings.batch": sizes}, arms=arms, seconds=0.3, seed=seed
            )
        )
        assert runner.finish().reason == "done", runner.describe()
        table = runner.session.studies[-1].tables[sweep.POINTS]
        points = zip(table["x"], table["arm"], table["peak_bytes"], strict=True)
        peaks.append({(x, arm): peak for x, arm, peak in points})
    for point, peak in peaks[0].items():
        assert peak == pytest.approx(peaks[1][point], rel=0.03)
    for arm in (0, 1):
        grown = [peaks[0][float(size), float(arm)] for size in sizes]
        assert grown == sorted(grown)
