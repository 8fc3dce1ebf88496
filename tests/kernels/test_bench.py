"""Timing an operator: what is wrong, fails or comes too late is told and not timed."""

import dataclasses
import math

import torch

from kernels import OPS, Implementation
from kernels._bench import bench

CPU = torch.device("cpu")


def with_implementations(**calls):
    """SwiGLU with these implementations, and without its compiled reference."""
    op = OPS["swiglu"]
    found = {name: Implementation(call) for name, call in calls.items()}
    return dataclasses.replace(op, implementations=found, large_reference=op.reference)


def timed(op, **options):
    return list(bench(op, CPU, torch.float32, **options))


def test_each_direction_of_a_right_implementation_is_timed():
    forward, backward = timed(with_implementations(plain=OPS["swiglu"].reference))
    assert (forward.direction, backward.direction) == ("forward", "backward")
    for row in (forward, backward):
        assert (row.op, row.impl, row.dtype, row.problem) == ("swiglu", "plain", "float32", "")
        assert len(row.times_us) == 30 and min(row.times_us) > 0
        assert row.floor_us > 0 and row.first_s > 0 and 0 <= row.error <= 1
    assert backward.work.flops > forward.work.flops > 0


def test_gradients_of_the_forward_pass_are_timed_together_with_it():
    op = with_implementations(plain=OPS["swiglu"].reference)
    forward, both = timed(dataclasses.replace(op, gradients_in_forward=True))
    assert (forward.direction, both.direction) == ("forward", "forward and backward")
    _, backward = timed(op)
    assert both.work.flops == forward.work.flops + backward.work.flops
    assert OPS["linear_cross_entropy"].gradients_in_forward


def test_a_wrong_implementation_is_told_and_not_timed():
    rows = timed(with_implementations(wrong=lambda gate, up: gate * up))
    (row,) = rows
    assert row.problem.startswith("wrong: output 0: largest error") and not row.times_us
    assert row.error > 1


def test_a_failing_implementation_is_told_and_the_next_is_timed():
    def fails(gate, up):
        raise ValueError("no such gate")

    first, *rest = timed(with_implementations(fails=fails, plain=OPS["swiglu"].reference))
    assert "no such gate" in first.problem and not first.times_us and math.isnan(first.error)
    assert [row.impl for row in rest] == ["plain", "plain"]


def test_one_that_writes_into_its_inputs_spoils_nothing_for_the_next():
    def greedy(gate, up):
        result = OPS["swiglu"].reference(gate, up)
        gate.detach().fill_(7.0)
        return result

    rows = timed(with_implementations(greedy=greedy, plain=OPS["swiglu"].reference))
    assert [row.problem for row in rows if row.impl == "plain"] == ["", ""]


def test_what_is_not_begun_by_the_deadline_says_so():
    rows = timed(with_implementations(plain=OPS["swiglu"].reference), deadline=0.0)
    assert [row.problem for row in rows] == ["not timed: out of time"]
