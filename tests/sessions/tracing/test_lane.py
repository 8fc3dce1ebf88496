"""The time of a rank, from the trace of its steps: computing, waiting in collectives, idle."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import MAIN, Written

from sessions.tracing import trace
from sessions.tracing.lane import _length, _union, lane_of

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def read(tmp_path, written: Written, device: str) -> trace.Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": written.events}))
    return trace.read(path, device)


def test_communication_beside_kernels_is_hidden_and_the_rest_is_waited_for(tmp_path):
    written = Written()
    written.mark(trace.STEP, 0, 1000)
    written.kernel("ampere_sgemm_128x64", 10, 400, start=100)  # 100 to 500
    written.kernel(NCCL, 20, 300, start=400)  # 400 to 700: 200 of it alone
    written.kernel("elementwise_kernel", 30, 100, start=800)  # 800 to 900, after 100 idle
    lane = lane_of(read(tmp_path, written, "cuda"), steps=2)
    assert lane.step_ms == pytest.approx(0.4)
    assert lane.computing_ms == pytest.approx(0.25)
    assert lane.waiting_ms == pytest.approx(0.1)
    assert lane.idle_ms == pytest.approx(0.05)
    assert lane.communication_ms == pytest.approx(0.15)


def test_on_the_cpu_the_innermost_operators_compute_and_gloo_communicates(tmp_path):
    written = Written()
    written.mark(trace.STEP, 0, 1000)
    written.op("aten::linear", 100, 300)
    written.op("aten::addmm", 150, 250)
    written.op("c10d::allreduce_", 300, 310)
    written.mark("gloo:all_reduce", 250, 500, thread=MAIN + 7)
    written.op("_c10d_functional::wait_tensor", 320, 500)
    written.op("aten::add_", 500, 600)
    lane = lane_of(read(tmp_path, written, "cpu"), steps=1)
    assert (lane.step_ms, lane.computing_ms) == pytest.approx((1.0, 0.2))
    assert (lane.waiting_ms, lane.communication_ms) == pytest.approx((0.25, 0.25))
    assert lane.idle_ms == pytest.approx(0.55)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_the_union_of_intervals_covers_what_any_of_them_does(pairs):
    intervals = [(start, start + length) for start, length in pairs]
    covered = np.zeros(100, bool)
    for start, stop in intervals:
        covered[start:stop] = True
    union = _union(intervals)
    assert _length(union) == covered.sum()
    assert (union[1:, 0] > union[:-1, 1]).all()
