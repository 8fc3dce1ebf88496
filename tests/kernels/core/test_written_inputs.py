"""Operators that write into an input: comparisons and timings must not change the caller's."""

import dataclasses
from typing import Any

import pytest
import torch
from stubbed_triton import stubbed
from subjects import WRITING

import kernels
from kernels import Case, Cost, Operator, Work
from kernels.core import dispatch, implementation_timing, replay
from kernels.core.check import Exact, as_tuple, end_of_huge
from kernels.core.operator import Huge, Implementation
from kernels.core.recorder import Recorder
from kernels.core.triton_helpers import INSTALLED, INTERPRETED
from kernels.measure.bench import leaves_of

CPU = torch.device("cpu")
UNCHANGED = "the caller's tensor has its old values"


def add_in_place(x: torch.Tensor, total: torch.Tensor, update: bool) -> torch.Tensor:
    """Return twice the new total, and write the total if ``update``."""
    new = total + x
    if update:
        total.copy_(new)
    return 2 * new


def add_without_writing(x: torch.Tensor, total: torch.Tensor, update: bool) -> torch.Tensor:
    return 2 * (total + x)


def inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    make = {"device": device, "dtype": dtype}
    return {
        "x": torch.ones(6, 4, **make),
        "total": torch.arange(48.0, **make).view(6, 8)[:, ::2],
        "update": case.sizes.get("update", True),
    }


OP: Operator = Operator(
    name="add_to",
    function=lambda *args: dispatch.run(OP, None, *args),
    reference=add_in_place,
    implementations={"torch": Implementation(add_in_place)},
    inputs=inputs,
    cost=lambda x, total, update: Cost(Work(3 * x.nbytes, x.numel())),
    cases=(Case("updates", {}), Case("does not", {"update": False})),
    sizes=lambda random: {},
    gradients=("x", "total"),
    written=lambda x, total, update: ("total",) if update else (),
)


@pytest.fixture(params=OP.cases, ids=lambda case: case.name)
def drawn(request) -> dict[str, Any]:
    return inputs(request.param, CPU, torch.float32, 0)


def assert_unchanged(drawn) -> None:
    expected = inputs(Case("", {}), CPU, torch.float32, 0)
    assert torch.equal(drawn["total"], expected["total"]), UNCHANGED
    assert drawn["total"].stride() == expected["total"].stride()


def test_a_check_compares_what_a_call_wrote_and_leaves_the_inputs(drawn):
    exact = Exact(OP, drawn)
    assert all(c.right for c in exact.compare(OP.implementations["torch"]))
    wrong = [c.name for c in exact.compare(Implementation(add_without_writing)) if not c.right]
    assert wrong == (["total after the call"] if drawn["update"] else [])
    gradients = {"gradient of x", "gradient of total"}
    assert gradients.isdisjoint(exact.exact) == drawn["update"], "none where the call writes"
    assert_unchanged(drawn)


def test_a_check_of_the_end_compares_what_a_call_wrote(drawn):
    def last_row_is_lost(x, total, update):
        last = total[-1:].clone()
        new = add_in_place(x, total, update)
        total[-1:] = last
        return new

    huge = Huge({})
    fresh = dict(zip(drawn, OP.with_copies(tuple(drawn.values())), strict=True))
    assert all(c.right for c in end_of_huge(OP, drawn, add_in_place, huge))
    if drawn["update"]:
        wrong = [c.name for c in end_of_huge(OP, fresh, last_row_is_lost, huge) if not c.right]
        assert wrong == ["total after the call"]


def test_a_measurement_compares_what_a_call_wrote_and_leaves_the_inputs(drawn, monkeypatch):
    monkeypatch.setattr(implementation_timing, "_loop_us", lambda call: call() and 1.0)
    monkeypatch.setattr(
        implementation_timing, "times_us", lambda call, n, *_, **__: [call() and 1.0] * n
    )
    ways = {"right": add_in_place, "same": add_in_place, "lost": add_without_writing}
    op = dataclasses.replace(OP, implementations={n: Implementation(c) for n, c in ways.items()})
    result = implementation_timing.measure(op, tuple(ways), tuple(drawn.values()))
    assert result.costs.keys() == ways.keys() - result.dropped.keys() >= {"right", "same"}
    lost = result.dropped.get("lost", "")
    assert lost.startswith("wrong: result 1 has largest error") == drawn["update"]
    assert_unchanged(drawn)


def test_copies_are_made_only_of_what_a_call_writes(drawn):
    args = tuple(drawn.values())
    x, total, update = OP.with_copies(args)
    assert x is args[0] and update is args[2]
    assert (total is not args[1]) == drawn["update"]
    assert torch.equal(total, args[1]) and total.stride() == args[1].stride()


def test_a_benchmark_has_no_gradients_where_a_call_writes(drawn):
    requires = [x.requires_grad for x in leaves_of(OP, drawn).values() if torch.is_tensor(x)]
    assert requires == 2 * [not drawn["update"]]


def test_autograd_refuses_a_graph_whose_saved_values_a_kernel_wrote_over(drawn, monkeypatch):
    """Autograd does not see what a kernel writes through a pointer."""

    def write_unseen(x, total, update):
        with torch.autograd._unsafe_preserve_version_counter(total):
            return add_in_place(x, total, update)

    op = dataclasses.replace(OP, implementations={"torch": Implementation(write_unseen)})
    monkeypatch.setitem(dispatch.OPS, OP.name, op)
    weight = torch.ones(4, requires_grad=True)
    y = (drawn["total"] * weight).sum()
    with torch.no_grad():
        dispatch.run(op, None, *drawn.values())
    if drawn["update"]:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    else:
        y.backward()


@torch.no_grad()
@pytest.mark.parametrize(("op", "case"), WRITING)
def test_a_call_does_not_write_into_elements_that_share_memory(op, case):
    """PyTorch refuses it too, but a kernel would leave what its last program wrote."""
    arguments = op.inputs(case, CPU, torch.float32, 0)
    (name,) = op.written(*arguments.values())
    arguments[name] = arguments[name][..., :1].expand_as(arguments[name])
    with pytest.raises(kernels.Mistake, match=f"cannot write into {name}, whose elements share"):
        op.function(**arguments)


@pytest.mark.skipif(not INSTALLED or INTERPRETED, reason="needs Triton outside its interpreter")
@pytest.mark.parametrize(("op", "case"), WRITING)
def test_a_replay_writes_into_the_tensor_that_it_is_given(op, case, monkeypatch):
    with stubbed() as driver, torch.no_grad(), kernels.using(**{op.name: "triton"}):
        for number in range(replay.BEFORE + 4):
            arguments = op.inputs(case, CPU, torch.bfloat16, number)
            written = op.written_tensors(tuple(arguments.values()))
            versions = {name: x._version for name, x in written.items()}
            driver.launches.clear()
            with monkeypatch.context() as patch:
                if number > replay.BEFORE + 1:
                    patch.setitem(dispatch.OPS, op.name, None)  # nothing is decided again
                results = as_tuple(op.function(**arguments))
            launched = [
                value.data_ptr() if isinstance(value, torch.Tensor) else value
                for launch in driver.launches
                for value in launch
            ]
            for name, x in written.items():
                alike = [result for result in results if result.shape == x.shape]
                assert all(result is x for result in alike)
                assert x.data_ptr() in launched
                assert x._version > versions[name]


@pytest.mark.skipif(not INSTALLED or INTERPRETED, reason="needs Triton outside its interpreter")
def test_a_copy_of_what_a_launch_may_have_written_is_not_replayed_before_the_launch():
    recorder = Recorder(0, operators=0)
    x = recorder.add_argument(torch.ones(4))
    with recorder:
        before = x.clone()
        recorder.launched(lambda *_: None, None, (1, 1, 1), (x, before), (), 0, ())
        assert not recorder.rejected
        x.clone()
    assert recorder.rejected == "aten.clone.default"
