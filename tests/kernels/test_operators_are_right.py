"""Every implementation of every operator against its reference in FP64."""

import dataclasses
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from subjects import DEVICE, DTYPES, cases, fitting, operators

import kernels
from kernels import Case, Operator
from kernels.core.check import Exact, as_tuple, poisoned, stretched
from kernels.core.triton_helpers import INTERPRETED
from kernels.measure.bench import leaves_of

LEAST_WORK = 500  # product of the sizes of a case that is not merely a scalar


def assert_right(op: Operator, inputs, exact: Exact | None = None) -> None:
    exact = exact or Exact(op, inputs)
    for name, implementation in fitting(op, inputs).items():
        wrong = [str(c) for c in exact.compare(implementation) if not c.right]
        assert not wrong, f"{op.name} {name}: {wrong}"


def smallest(op: Operator):
    """Return the inputs of the operator's smallest case without empty tensors."""
    small = [op.inputs(case, DEVICE, torch.float32, 0) for case in op.cases if not case.bench]
    sizes = [[x.numel() for x in case.values() if isinstance(x, torch.Tensor)] for case in small]
    return min(zip(sizes, small, strict=True), key=lambda it: sum(it[0]) if all(it[0]) else 1e9)[1]


def modest(op: Operator) -> Case:
    """Return the smallest case whose tensors are neither empty nor merely scalars."""
    cases = (c for c in op.cases if not c.bench and _work(c) >= LEAST_WORK and not is_empty(op, c))
    return min(cases, key=_work)


def is_empty(op: Operator, case: Case) -> bool:
    inputs = op.inputs(case, DEVICE, torch.float32, 0).values()
    return not all(x.numel() for x in inputs if isinstance(x, torch.Tensor))


def contiguous_cases() -> Iterator[Any]:
    """Yield all cases; in the interpreter those are slow that the next test has in this dtype.

    A kernel that refuses inputs with gaps is called with contiguous ones only.
    """
    for parameters in cases():
        op, case, dtype = parameters.values
        is_repeated = INTERPRETED and dtype == DTYPES[1]
        if is_repeated:
            inputs = op.inputs(case, DEVICE, dtype, 0)
            is_repeated = fitting(op, stretched(inputs)).keys() == fitting(op, inputs).keys()
        marks = [pytest.mark.slow] if is_repeated else []
        yield pytest.param(op, case, dtype, id=parameters.id, marks=marks)


@pytest.mark.parametrize(("op", "case", "dtype"), contiguous_cases())
def test_outputs_and_gradients_lose_at_most_twice_what_the_reference_loses(op, case, dtype):
    assert_right(op, op.inputs(case, DEVICE, dtype, 0))


@pytest.mark.sample(60)
@pytest.mark.parametrize(("op", "case", "dtype"), [c for c in cases() if c.values[2] == DTYPES[1]])
def test_inputs_need_not_be_contiguous(op, case, dtype):
    inputs = stretched(op.inputs(case, DEVICE, dtype, 0))
    assert_right(op, inputs)


@pytest.mark.parametrize("op", operators())
def test_the_public_function_computes_the_same_as_each_implementation(op):
    """The other tests call implementations directly, and would not notice a broken function."""
    inputs = op.inputs(modest(op), DEVICE, torch.float32, 0)
    exact = Exact(op, inputs)

    def call(*values):
        return op.function(**dict(zip(inputs, values, strict=True)))

    for name, implementation in fitting(op, inputs).items():
        kernels.reset_usage()
        with kernels.using(**{op.name: name}):
            compared = exact.compare(dataclasses.replace(implementation, call=call))
        assert not [str(c) for c in compared if not c.right], f"{op.name} {name}"
        # A choice may stand for one of several implementations, by the inputs.
        ran = kernels.resolve_choice(op, name, tuple(inputs.values()))
        assert kernels.usage()[op.name].keys() == {ran}


@pytest.mark.parametrize("op", operators())
@settings(
    max_examples=5 if INTERPRETED else 8,  # the interpreter takes a hundred times as long
    derandomize=True,  # so that a failure can be repeated
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(DTYPES))
def test_any_valid_size_is_right(op, seed, dtype):
    sizes = op.sizes(Random(seed))
    assert_right(op, op.inputs(Case(f"random {sizes}", sizes), DEVICE, dtype, seed % 1000))


@pytest.mark.parametrize("op", operators())
def test_inputs_are_left_as_they_were(op):
    case = modest(op)
    inputs = op.inputs(case, DEVICE, torch.float32, 0)
    for implementation in fitting(op, inputs).values():
        implementation(*inputs.values())
    written = op.written(*inputs.values())
    for name, value in op.inputs(case, DEVICE, torch.float32, 0).items():
        if isinstance(value, torch.Tensor) and name not in written:
            assert torch.equal(value, inputs[name]), name


@pytest.mark.parametrize("op", operators())
def test_without_gradients_the_outputs_are_the_same(op):
    """A forward pass that keeps nothing for a backward pass may be another kernel."""
    inputs = smallest(op)
    leaves = tuple(leaves_of(op, inputs).values())
    for name, implementation in fitting(op, inputs).items():
        recorded = as_tuple(implementation(*op.with_copies(leaves)))
        with torch.no_grad(), poisoned():
            alone = as_tuple(implementation(*op.with_copies(tuple(inputs.values()))))
        for first, other in zip(alone, recorded, strict=True):
            assert not first.requires_grad
            torch.testing.assert_close(first, other.detach(), msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("op", operators())
def test_the_gradient_of_a_sum_is_that_of_ones(op):
    """``sum`` hands the backward pass a gradient without memory of its own (strides of zero)."""
    inputs = op.inputs(modest(op), DEVICE, torch.float32, 0)
    names = op.differentiable(inputs)
    if not names:
        pytest.skip(f"{op.name} has no gradient")
    for name, implementation in fitting(op, inputs).items():
        leaves = {n: inputs[n].detach().requires_grad_() for n in names}
        outputs = as_tuple(implementation(*(leaves.get(n, x) for n, x in inputs.items())))
        live = [y for y in outputs if y.requires_grad]
        ones = torch.autograd.grad(
            live, list(leaves.values()), [torch.ones_like(y) for y in live], retain_graph=True
        )
        sums = torch.autograd.grad(sum(y.sum() for y in live), list(leaves.values()))
        for first, other in zip(ones, sums, strict=True):
            torch.testing.assert_close(first, other, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("op", operators())
def test_a_second_derivative_is_that_of_the_reference_or_refused(op):
    """A penalty on the gradients of a sum: what comes into the backward pass is no way to it."""
    inputs = smallest(op)
    names = op.differentiable(inputs)
    if not names:
        pytest.skip(f"{op.name} has no gradient")

    def slopes(call):
        leaves = {n: inputs[n].detach().clone().requires_grad_() for n in names}
        outputs = as_tuple(call(*(inputs | leaves).values()))
        total = sum(y.sum() for y in outputs if y.requires_grad)
        wanted = list(leaves.values())
        gradients = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
        penalty = sum(g.square().sum() for g in gradients if g is not None)
        (total + penalty).backward()
        return {n: x.grad for n, x in leaves.items()}

    expected = slopes(op.reference)
    for name, implementation in fitting(op, inputs).items():
        try:
            actual = slopes(implementation)
        except RuntimeError as refusal:
            assert re.search("once_differentiable|derivative for .* not implemented", str(refusal))
            continue
        torch.testing.assert_close(
            actual, expected, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


# Operators that get None instead of zeros for it (``absent_as_none``).
NONE = ("causal_conv1d", "moe_gating", "ssd_scan", "ssd_step", "token_router")
GIVEN_NONE = [p for p in operators() if p.id in NONE]


@pytest.mark.parametrize("op", GIVEN_NONE)
def test_an_output_that_gets_no_gradient_counts_as_one_that_gets_zeros(op):
    inputs = op.inputs(modest(op), DEVICE, torch.float32, 0)
    names = op.differentiable(inputs)
    for name, implementation in fitting(op, inputs).items():
        leaves = {n: inputs[n].detach().requires_grad_() for n in names}
        outputs = as_tuple(implementation(*(inputs | leaves).values()))
        live = [y for y in outputs if y.requires_grad]
        assert len(live) > 1
        wanted = list(leaves.values())
        for alone in live:
            ramp = torch.linspace(-1, 1, alone.numel()).view(alone.shape).to(alone)
            given = [ramp if y is alone else torch.zeros_like(y) for y in live]
            among = torch.autograd.grad(live, wanted, given, retain_graph=True)
            result = torch.autograd.grad(
                alone, wanted, ramp, retain_graph=True, materialize_grads=True
            )
            torch.testing.assert_close(result, among, msg=lambda m, n=name: f"{n}: {m}")


def turned(x):
    """Return the same values, with the last two dimensions in the other order in memory."""
    if not isinstance(x, torch.Tensor) or x.dim() < 2:
        return x
    return x.detach().transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.parametrize("op", operators())
def test_the_last_dimension_need_not_be_the_innermost_in_memory(op):
    """Neither in an input nor in a gradient: that of keys is a transpose in attention by hand."""
    for case in sorted((c for c in op.cases if not c.bench), key=_work):
        inputs = {n: turned(x) for n, x in op.inputs(case, DEVICE, torch.float32, 0).items()}
        names = op.differentiable(inputs)
        if any(inputs[n].dim() > 1 and inputs[n].stride(-1) > 1 for n in names):
            break  # sizes for which the order matters
    else:
        pytest.skip(f"{op.name} has no gradient of two dimensions")
    expected = None
    for implementation in (op.reference, *fitting(op, inputs).values()):
        leaves = {n: inputs[n].detach().requires_grad_() for n in names}
        outputs = as_tuple(implementation(*(inputs | leaves).values()))
        live = [y for y in outputs if y.requires_grad]
        ramps = [turned(torch.linspace(-1, 1, y.numel()).view(y.shape)).to(y) for y in live]
        actual = [*outputs, *torch.autograd.grad(live, list(leaves.values()), ramps)]
        expected = expected or actual
        for first, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op", operators())
def test_the_reference_has_the_gradients_that_finite_differences_find(op):
    case = min((c for c in op.cases if not c.bench and "0" not in c.name[:2]), key=_work)
    inputs = op.inputs(case, torch.device("cpu"), torch.float32, 0)
    names = op.differentiable(inputs)
    if not names:
        pytest.skip(f"{op.name} has no gradient")
    wide = {
        n: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for n, x in inputs.items()
    }
    leaves = [wide[n].requires_grad_() for n in names]

    def call(*values):
        return op.reference(**(wide | dict(zip(names, values, strict=True))))

    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


def _work(case: Case) -> int:
    product = 1
    for size in case.sizes.values():
        if type(size) is int:
            product *= max(size, 1)
    return product


@pytest.mark.parametrize("op", operators())
def test_cost_counts_at_least_what_is_read_and_written(op):
    for case in op.cases:
        if case.bench:
            continue
        inputs = op.inputs(case, DEVICE, torch.float32, 0)
        cost = op.cost(**inputs)
        outputs = as_tuple(op.reference(**inputs))
        assert cost.forward.bytes >= sum(y.numel() * y.element_size() for y in outputs)
        assert cost.forward.flops >= 0
        writes = bool(op.written(*inputs.values()))
        assert (cost.backward is not None) == (bool(op.gradients) and not writes)
