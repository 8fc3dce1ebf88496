"""Tests of the choice by measurement, on the CPU with implementations of known cost.

Their time is counted and not measured, so that a busy machine changes nothing.
"""

import dataclasses
import gc
import json
import logging
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels.core import dispatch, implementation_timing, measured, tuned_files
from kernels.core.implementation_timing import Cost, Measurement
from kernels.core.operator import Implementation


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


counted_s = [0.0]


def counted_us(call):
    before = counted_s[0]
    call()
    return 1e6 * (counted_s[0] - before)


def slow(seconds, factor=1.0):
    def call(x, weight, eps):
        counted_s[0] += seconds + 1e-5
        return factor * kernels.OPS["rms_norm"].reference(x, weight, eps)

    return call


def raises(*_):
    raise RuntimeError("no kernel image")


@pytest.fixture
def with_implementations(monkeypatch, tmp_path):
    monkeypatch.setattr(measured, "DEVICES", ("cuda", "cpu"))
    # Ranks of another file's tests may still be there, and nothing is measured beside them.
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(tuned_files, "folder", lambda: tmp_path)
    monkeypatch.setattr(implementation_timing, "_loop_us", counted_us)
    monkeypatch.setattr(
        implementation_timing,
        "times_us",
        lambda call, repeats, *_, **__: [counted_us(call)] * repeats,
    )
    measured.forget()

    def put(**calls):
        made = {
            name: call if isinstance(call, Implementation) else Implementation(call)
            for name, call in calls.items()
        }
        op = dataclasses.replace(kernels.OPS["rms_norm"], implementations=made)
        monkeypatch.setitem(dispatch.OPS, "rms_norm", op)
        dispatch._candidates_once.cache_clear()
        return op

    yield put
    dispatch._candidates_once.cache_clear()
    measured.forget()


def chosen(op, *shape):
    x = torch.randn(shape)
    dispatch.run(op, None, x, torch.ones(shape[-1]), 1e-6)
    return kernels.reasons()["rms_norm"]


def test_auto_uses_the_cheapest_and_names_the_numbers(with_implementations):
    op = with_implementations(slow=slow(0.004), fast=slow(0.0), middle=slow(0.001))
    name, why = chosen(op, 40, 8)
    assert name == "fast"
    assert why.startswith(f"{kernels.MEASURED}, GPU and host time of a call: fast 0.")
    order = [part.split()[0] for part in why.split(": ", 1)[1].split(", ")]
    assert order == ["fast", "middle", "slow"]


def test_a_wrong_or_broken_implementation_is_never_chosen_however_fast(with_implementations):
    op = with_implementations(right=slow(0.001), wrong=slow(0.0, 1.5), broken=raises)
    name, why = chosen(op, 40, 8)
    assert name == "right"
    assert "wrong dropped: wrong: result 0 has largest error" in why
    assert "broken dropped: failed: RuntimeError: no kernel image" in why


def test_a_class_of_shapes_is_measured_once_for_all_processes(with_implementations, monkeypatch):
    op = with_implementations(slow=slow(0.002), fast=slow(0.0))
    timed = []
    measure = measured.measure
    monkeypatch.setattr(measured, "measure", lambda *a: timed.append(1) or measure(*a))
    for rows in (33, 64, 40):
        assert chosen(op, rows, 8)[0] == "fast"
    assert len(timed) == 1
    measured.forget()  # as another process
    assert chosen(op, 50, 8)[0] == "fast"
    assert len(timed) == 1
    chosen(op, 65, 8)  # of the next class
    chosen(op, 40, 16)  # another width
    assert len(timed) == 3


def test_an_implementation_that_appears_later_is_measured(with_implementations):
    op = with_implementations(slow=slow(0.002), middle=slow(0.001))
    assert chosen(op, 40, 8)[0] == "middle"
    measured.forget()  # as another process, of another installation
    op = with_implementations(slow=slow(0.002), middle=slow(0.001), fast=slow(0.0))
    assert chosen(op, 40, 8)[0] == "fast"


def test_what_refuses_the_inputs_is_passed_over_even_where_it_was_the_fastest(
    with_implementations,
):
    def refuses(x, *_):
        return "takes an even number of rows" if x.shape[0] % 2 else None

    fast = Implementation(slow(0.0), refuses=refuses)
    op = with_implementations(slow=slow(0.002), fast=fast)
    assert chosen(op, 40, 8)[0] == "fast"
    assert chosen(op, 41, 8)[0] == "slow"


def test_what_auto_avoids_and_last_resorts_are_not_timed(with_implementations):
    op = with_implementations(
        slow=slow(0.001),
        fast=slow(0.0),
        avoided=Implementation(raises, avoid=lambda *_: "is used by name"),
        last=Implementation(raises, last_resort=True),
    )
    assert "dropped" not in chosen(op, 40, 8)[1]


def test_nothing_is_measured_where_that_is_switched_off_or_operators_are_watched(
    with_implementations,
):
    op = with_implementations(slow=slow(0.001), fast=slow(0.0))
    with kernels.measuring(False):
        assert chosen(op, 40, 8)[0] == "slow"
    with Watching():
        assert chosen(op, 40, 8)[0] == "slow"
    x = torch.randn(40, 8)
    assert kernels.resolve_choice(op, "auto", (x, None, 1e-6)) == "slow"
    assert not kernels.measurements()
    assert chosen(op, 40, 8)[0] == "fast"


def test_a_damaged_file_of_choices_counts_as_empty(with_implementations, tmp_path):
    op = with_implementations(slow=slow(0.002), fast=slow(0.0))
    chosen(op, 40, 8)
    (file,) = tmp_path.rglob("choice.rms_norm-*.json")
    document = json.loads(file.read_text())
    assert next(iter(document["choices"].values()))["order"] == ["slow", "fast"]
    for damage in ("", "[]", json.dumps(document | {"choices": {"x": {"order": 1}}})):
        file.write_text(damage)
        measured.forget()
        assert chosen(op, 40, 8)[0] == "fast"


def test_measuring_leaves_inputs_gradients_and_saved_tensor_hooks_alone(with_implementations):
    op = with_implementations(slow=slow(0.001), fast=slow(0.0))
    x, weight, packed = torch.randn(40, 8, requires_grad=True), torch.ones(8), []
    before = x.detach().clone()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        y = dispatch.run(op, None, x, weight, 1e-6)
    once = len(packed)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        dispatch.run(op, None, x, weight, 1e-6)
    assert len(packed) == 2 * once
    assert x.grad is None and torch.equal(x, before)
    y.sum().backward()
    assert x.grad is not None


def test_a_call_that_fails_while_it_is_timed_leaves_no_graph(with_implementations):
    outputs = []

    def fails(x, weight, eps):
        outputs.append(weakref.ref(y := x.sigmoid()))  # an output that its operator saves
        raise RuntimeError(f"no kernel image for {y.dtype}")

    op = with_implementations(slow=slow(0.001), fast=slow(0.0), failing=fails)
    dispatch.run(op, None, torch.randn(40, 8, requires_grad=True), torch.ones(8), 1e-6)
    gc.collect()
    assert outputs and not any(output() is not None for output in outputs)


def test_no_time_is_stated_where_there_was_nothing_to_compare():
    alone = Measurement(
        ("ours", "theirs"), {"ours": Cost(0.0, 0.0)}, {"theirs": "not enough memory"}
    )
    assert alone.text(captured=True) == (
        "not timed: ours is the only choice; theirs dropped: not enough memory"
    )


def test_host_time_counts_unless_the_step_is_captured():
    known = Measurement(
        ("flash4", "cudnn", "ours"),
        {"flash4": Cost(40.0, 413.0), "cudnn": Cost(45.0, 47.0), "ours": Cost(48.0, 51.0)},
    )
    assert known.ranking(captured=False) == ("cudnn", "ours", "flash4")
    assert known.ranking(captured=True) == ("flash4", "cudnn", "ours")
    assert known.text(captured=False).endswith("cudnn 0.047 ms, ours 0.051, flash4 0.413")


def test_steps_before_a_capture_choose_what_the_captured_step_runs():
    on_gpu = SimpleNamespace(is_cuda=True)
    with kernels.captured_choices():
        with kernels.captured_choices():
            assert measured.is_captured(on_gpu)
        assert measured.is_captured(on_gpu) and not measured.is_captured(torch.ones(1))
    assert measured._captured_blocks == 0


@given(st.dictionaries(st.sampled_from("abcde"), st.floats(1, 1e4), min_size=1))
def test_only_a_clear_gain_is_taken_over_the_first(device_us):
    known = Measurement(tuple("abcde"), {n: Cost(us, us) for n, us in device_us.items()})
    ranked = known.ranking(captured=True)
    assert sorted(ranked) == sorted(device_us)
    first = min(device_us)
    if min(device_us.values()) > implementation_timing.GAIN * device_us[first]:
        assert ranked[0] == first
    else:
        assert device_us[ranked[0]] == min(device_us.values())


def test_a_compiled_call_uses_what_is_stored_and_measures_nothing(
    with_implementations, monkeypatch
):
    op = with_implementations(slow=slow(0.002), fast=slow(0.0))
    monkeypatch.setattr(measured.hardware, "has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    args = (torch.randn(40, 8), torch.ones(8), 1e-6)
    parts = measured._shape_class(args)
    assert measured._while_tracing("rms_norm", False, *parts) is None
    assert chosen(op, 40, 8)[0] == "fast"
    order, why = measured._while_tracing("rms_norm", False, *parts)
    assert order == ("fast", "slow") and "GPU time of a call" in why
    assert len(kernels.measurements()) == 1


def test_under_compile_a_fused_operator_is_left_to_the_compiler():
    """Its graph has torch's operations, which Inductor fuses with their neighbours."""
    kernels.reset_usage()
    torch.compile(kernels.rms_norm, backend="eager")(torch.randn(4, 8))
    assert kernels.reasons()["rms_norm"] == ("torch", f"{kernels.PREFERRED}: {dispatch.FUSED}")


@pytest.mark.parametrize("operator", [kernels.swiglu, kernels.geglu])
def test_under_compile_only_the_gradient_of_packed_halves_is_not_left_to_the_compiler(operator):
    packed, half = torch.randn(4, 8), torch.randn(4, 4)
    compiled = torch.compile(operator, backend="eager", fullgraph=True)
    for inputs, fused in (
        ((packed,), True),
        ((packed.clone().requires_grad_(),), False),
        ((half.clone().requires_grad_(), half), True),
    ):
        kernels.reset_usage()
        compiled(*inputs)
        _, why = kernels.reasons()[operator.__name__]
        assert (why == f"{kernels.PREFERRED}: {dispatch.FUSED}") == fused


def test_a_loop_of_calls_is_long_enough_for_its_clock_and_no_longer():
    calls = []
    us = implementation_timing._loop_us(lambda: calls.append(1))
    assert us > 0 and len(calls) == 1 + implementation_timing.MOST_IN_LOOP


def test_an_implementation_that_cannot_run_any_more_is_passed_over_with_the_reason(
    with_implementations, monkeypatch
):
    """Triton may be switched off, or a library removed, after the times were stored."""
    op = with_implementations(slow=slow(0.002), fast=slow(0.0), middle=slow(0.001))
    assert chosen(op, 40, 8)[0] == "fast"
    measured.forget()  # as another process
    absent = Implementation(raises, missing=lambda device_type: "is switched off")
    op = with_implementations(slow=slow(0.002), fast=absent, middle=slow(0.001))
    dispatch._missing_once.cache_clear()
    name, why = chosen(op, 40, 8)
    assert name == "middle"
    assert why.startswith(kernels.MEASURED) and why.endswith("; fast: is switched off")
    measured.forget()
    op = with_implementations(slow=slow(0.002), middle=slow(0.001))
    name, why = chosen(op, 40, 8)
    assert name == "middle"
    assert why.endswith("; fast: is no longer an implementation of rms_norm")
    dispatch._missing_once.cache_clear()


def test_another_precision_of_products_has_its_own_measurement(with_implementations, monkeypatch):
    op = with_implementations(slow=slow(0.002), fast=slow(0.0))
    for precision in ("highest", "high", "highest"):
        monkeypatch.setattr(measured.hardware, "product_precision", lambda p=precision: p)
        chosen(op, 40, 8)
    written = sorted(key for _, key in kernels.measurements())
    assert [key.rsplit(",", 1)[1] for key in written] == ["high", "highest"]


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad])
def test_nothing_is_measured_under_transforms_whose_tensors_have_no_address(
    with_implementations, transform
):
    op = with_implementations(slow=slow(0.002), fast=slow(0.0))

    def call(x):
        return dispatch.run(op, None, x, None, 1e-6).sum()

    x = torch.randn(3, 8)
    expected = transform(lambda x: op.reference(x, None, 1e-6).sum())(x)
    torch.testing.assert_close(transform(call)(x), expected)
    assert kernels.reasons()["rms_norm"][0] == "slow" and not kernels.measurements()


@pytest.mark.parametrize("another_process", [False, True])
def test_what_refused_the_first_inputs_of_a_class_is_measured_on_inputs_that_it_accepts(
    with_implementations, another_process
):
    def refuses(x, *_):
        return None if x.is_contiguous() else "needs contiguous rows"

    fast = Implementation(slow(0.0), refuses=refuses)
    op = with_implementations(slow=slow(0.002), middle=slow(0.001), fast=fast)
    apart, together = torch.randn(40, 16)[:, ::2], torch.randn(40, 8)
    for x, name in ((apart, "middle"), (together, "fast"), (apart, "middle"), (together, "fast")):
        dispatch.run(op, None, x, None, 1e-6)
        assert kernels.reasons()["rms_norm"][0] == name
        if another_process:
            measured.forget()
    with measured.known_only():
        dispatch.run(op, None, torch.randn(41, 8), None, 1e-6)
    assert "middle 1." in kernels.reasons()["rms_norm"][1], "and no other time was lost"


def test_what_lacked_memory_is_tried_again_by_the_next_process(with_implementations, tmp_path):
    full = [True]

    def short(*inputs):
        if full[0]:
            raise torch.OutOfMemoryError
        return slow(0.0)(*inputs)

    op = with_implementations(slow=slow(0.001), fast=short)
    assert chosen(op, 40, 8)[0] == "slow"
    assert not list(tmp_path.rglob("choice.rms_norm-*.json"))
    full[0] = False
    assert chosen(op, 40, 8)[0] == "slow", "and not by this one at every call"
    measured.forget()
    assert chosen(op, 40, 8)[0] == "fast"


def test_times_that_cannot_be_stored_are_used_and_the_log_says_why(
    with_implementations, monkeypatch, caplog
):
    monkeypatch.setattr(tuned_files, "folder", lambda: Path("/dev/null"))
    measured.forget()
    measured._warn_unstored.cache_clear()
    op = with_implementations(slow=slow(0.002), fast=slow(0.0))
    with caplog.at_level(logging.WARNING):
        assert chosen(op, 40, 8)[0] == chosen(op, 80, 8)[0] == "fast"
    (text,) = [r.getMessage() for r in caplog.records if r.name == measured.__name__]
    assert "not stored: /dev/null/" in text and "set XDG_CACHE_HOME to a writable folder" in text
