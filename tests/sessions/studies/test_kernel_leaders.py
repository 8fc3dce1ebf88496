"""The best bundled kernel beside the best public one."""

import numpy as np
import pytest
from synthetic import bench_session

from sessions.studies.kernel_leaders import leaders, leaders_table
from sessions.studies.kernels import implementation_of, median_us


def test_each_case_shows_the_fastest_of_both_sides_and_their_ratio():
    session = bench_session()
    rows = leaders(session)
    assert len(rows) == 8, "four operators in two directions"
    for row in rows:
        times_us = {
            implementation_of(segment): median_us(segment)
            for segment in session.segments
            if (segment.configuration.preset, segment.configuration.workload)
            == (row["operator"], row["direction"])
        }
        assert row["public"] == min(("torch", "torch.compile"), key=times_us.__getitem__)
        expected = times_us["triton"] / times_us[row["public"]]
        assert row["ratio"] == pytest.approx(expected, rel=0.02)


def test_kernels_that_took_no_time_are_left_out():
    session = bench_session()
    for segment in session.segments[:2]:
        segment.steps = {name: np.array(values) for name, values in dict(segment.steps).items()}
        segment.steps["gpu_ms"][:] = segment.steps["wall_ms"][:] = 0.0
    assert len(leaders(session)) == 7
    assert len(leaders_table(session).rows) == 7
