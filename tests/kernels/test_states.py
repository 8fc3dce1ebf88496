"""Operators with a state: pieces equal the complete sequence, and steps equal the scan."""

import pytest
import torch
from subjects import DEVICE, implementations

import kernels
from kernels import OPS, Case
from kernels.core.check import as_tuple
from kernels.core.operator import COMPILED_TERMS

SIZES = {"batch": 2, "length": 150, "heads": 4, "dim": 5, "groups": 2, "states": 6}


def inputs_of(name, **sizes):
    inputs = OPS[name].inputs(Case("state", sizes), DEVICE, torch.float32, 3)
    return {n: x.double() if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}


def one_after_the_other(inputs):
    """Compute the scan by its equation: (y, final state)."""
    x, dt, a, b, c, d, dt_bias, h, *_ = inputs.values()
    dt = torch.nn.functional.softplus(dt + dt_bias)
    per_group = x.shape[2] // b.shape[2]
    outputs = []
    for t in range(x.shape[1]):
        b_t, c_t = (m[:, t].repeat_interleave(per_group, 1)[:, :, None] for m in (b, c))
        h = torch.exp(dt[:, t] * a)[..., None, None] * h
        h = h + (dt[:, t, :, None] * x[:, t])[..., None] * b_t
        outputs.append((h * c_t).sum(-1) + d[:, None] * x[:, t])
    return torch.stack(outputs, 1), h


@pytest.mark.parametrize("length", [1, 63, 64, 65, 150])
def test_the_scan_in_chunks_is_one_step_after_the_other_and_so_are_its_gradients(length):
    inputs = inputs_of("ssd_scan", **SIZES | {"length": length})
    leaves = {n: x.requires_grad_() for n, x in inputs.items() if isinstance(x, torch.Tensor)}
    results = [one_after_the_other(inputs), kernels.ssd_scan(**inputs, impl="torch")]
    upstream = [torch.randn_like(r) for r in results[0]]
    gradients = [torch.autograd.grad(r, list(leaves.values()), upstream) for r in results]
    for chunked, stepwise in zip(*results, strict=True):
        torch.testing.assert_close(chunked, stepwise)
    for name, chunked, stepwise in zip(leaves, *gradients, strict=True):
        torch.testing.assert_close(chunked, stepwise, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("chunk", [1, 16, 32, 256])
def test_a_scan_and_its_gradients_do_not_depend_on_the_chunk(chunk):
    inputs = inputs_of("ssd_scan", **SIZES)
    leaves = [x.requires_grad_() for x in inputs.values() if isinstance(x, torch.Tensor)]
    results = [kernels.ssd_scan(**inputs | {"chunk": c}, impl="torch") for c in (None, chunk)]
    upstream = [torch.randn_like(r) for r in results[0]]
    gradients = [torch.autograd.grad(r, leaves, upstream) for r in results]
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.skipif("triton" not in implementations(OPS["ssd_scan"]), reason="needs Triton")
def test_the_kernel_takes_other_chunks_where_it_can_and_says_where_not():
    inputs = inputs_of("ssd_scan", **SIZES)
    inputs = {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    large, small = (kernels.ssd_scan(**inputs | {"chunk": c}, impl="triton") for c in (64, 16))
    torch.testing.assert_close(small, large)
    with pytest.raises(
        kernels.Unavailable, match="supports chunks of 16 to 64 tokens for these sizes in float32"
    ):
        kernels.ssd_scan(**inputs | {"chunk": 128}, impl="triton")


@pytest.mark.parametrize("length", [1, 128, 129, 20_000])
def test_a_compiled_running_sum_adds_few_terms_at_once(length):
    """Inductor of torch 2.11 compiles no longer sum of broadcast terms on a GPU."""
    sizes = []

    def backend(graph, _):
        calls = (node for node in graph.graph.nodes if node.target == "cumsum")
        sizes.extend(node.args[0].meta["example_value"].shape[node.args[1]] for node in calls)
        return graph.forward

    torch._dynamo.reset()
    x = torch.rand(2, length, 3, dtype=torch.float64, device=DEVICE)
    compiled = torch.compile(kernels.running_sum, backend=backend, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(x), x.cumsum(1), rtol=1e-13, atol=0)
    assert torch.equal(compiled(x > 0.5, torch.int32), (x > 0.5).cumsum(1, dtype=torch.int32))
    assert sizes and max(sizes) <= COMPILED_TERMS


@pytest.mark.parametrize("impl", implementations(OPS["ssd_scan"]))
@pytest.mark.parametrize("cuts", [(0, 1, 30), (0, 64, 128), (0, 0, 149, 150)])
def test_a_scan_in_pieces_is_the_whole_scan(impl, cuts):
    inputs = inputs_of("ssd_scan", **SIZES)
    if impl == "triton":
        inputs = {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    y, final = kernels.ssd_scan(**inputs, impl=impl)
    state, pieces = inputs["initial_state_BHPN"], []
    for begin, end in zip(cuts, (*cuts[1:], 150), strict=True):
        part = {n: inputs[n][:, begin:end] for n in ("x_BLHP", "dt_BLH", "B_BLGN", "C_BLGN")}
        way = impl if begin < end else "torch"
        piece, state = kernels.ssd_scan(**inputs | part | {"initial_state_BHPN": state}, impl=way)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), y)
    torch.testing.assert_close(state, final)


@pytest.mark.parametrize("impl", implementations(OPS["ssd_step"]))
def test_steps_are_the_scan(impl):
    inputs = inputs_of("ssd_scan", **SIZES | {"length": 7})
    if impl == "triton":
        inputs = {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    y, final = kernels.ssd_scan(**inputs, impl=impl)
    x, dt, a, b, c, d, dt_bias, state, *_ = inputs.values()
    for t in range(7):
        y_t, state = kernels.ssd_step(
            x[:, t], dt[:, t], a, b[:, t], c[:, t], state, d, dt_bias, impl=impl
        )
        torch.testing.assert_close(y_t, y[:, t])
    torch.testing.assert_close(state, final)


@pytest.mark.parametrize("impl", implementations(OPS["ssd_step"]))
def test_the_gradients_of_steps_one_after_the_other_are_those_of_the_scan(impl):
    inputs = inputs_of("ssd_scan", **SIZES | {"length": 5})
    if impl == "triton":
        inputs = {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    leaves = {n: x.requires_grad_() for n, x in inputs.items() if isinstance(x, torch.Tensor)}
    x, dt, a, b, c, d, dt_bias, state, *_ = inputs.values()
    steps = []
    for t in range(5):
        y_t, state = kernels.ssd_step(
            x[:, t], dt[:, t], a, b[:, t], c[:, t], state, d, dt_bias, impl=impl
        )
        steps.append(y_t)
    results = [kernels.ssd_scan(**inputs, impl="torch"), (torch.stack(steps, 1), state)]
    upstream = [torch.randn_like(r) for r in results[0]]
    gradients = [torch.autograd.grad(r, list(leaves.values()), upstream) for r in results]
    for name, expected, actual in zip(leaves, *gradients, strict=True):
        torch.testing.assert_close(actual, expected, msg=lambda m, n=name: f"{n}: {m}")


def test_steps_that_vanish_and_steps_that_are_huge_are_finite_and_exact():
    raw = torch.tensor([-80.0, -30.0, -17.0, -15.0, 0.0, 15.0, 19.0, 25.0, 300.0], device=DEVICE)
    ones = torch.ones(1, 9, 1, 1, device=DEVICE)
    dt = raw.view(1, 9, 1).requires_grad_()
    expected = torch.nn.functional.softplus(raw.double())
    for impl in implementations(OPS["ssd_scan"]):
        y, _ = kernels.ssd_scan(
            ones, dt, -1e9 * torch.ones(1, device=DEVICE), ones, ones, impl=impl
        )
        # With so steep a decay only its own input dt x B remains of each step.
        torch.testing.assert_close(y.flatten()[2:].double(), expected[2:], rtol=1e-6, atol=0)
        (slope,) = torch.autograd.grad(y.sum(), dt)
        assert slope.isfinite().all()


@pytest.mark.parametrize("impl", implementations(OPS["causal_conv1d"]))
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("cuts", [(0, 1, 2, 3), (0, 5, 18)])
def test_a_convolution_in_pieces_is_the_whole_convolution(impl, width, cuts):
    sizes = {"batch": 2, "length": 24, "dim": 3, "width": width}
    inputs = inputs_of("causal_conv1d", **sizes)
    if impl == "triton":
        inputs = {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    y, final = kernels.causal_conv1d(**inputs, impl=impl)
    state, pieces = inputs["initial_state_BDW"], []
    for begin, end in zip(cuts, (*cuts[1:], 24), strict=True):
        part = {"x_BLD": inputs["x_BLD"][:, begin:end], "initial_state_BDW": state}
        piece, state = kernels.causal_conv1d(**inputs | part, impl=impl)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), y)
    torch.testing.assert_close(state, final)
    torch.testing.assert_close(final, inputs["x_BLD"][:, -width:].transpose(1, 2))


def test_the_convolution_is_that_of_torch():
    x, weight, bias, state, *_ = inputs_of(
        "causal_conv1d", batch=2, length=9, dim=3, width=4
    ).values()
    before = torch.cat((state[:, :, 1:], x.transpose(1, 2)), 2)
    expected = torch.nn.functional.conv1d(before, weight[:, None], bias, groups=3).transpose(1, 2)
    torch.testing.assert_close(kernels.causal_conv1d(x, weight, bias, state)[0], expected)


def test_a_state_of_nothing_is_the_initial_one():
    inputs = inputs_of("causal_conv1d", batch=2, length=0, dim=3, width=4)
    assert torch.equal(kernels.causal_conv1d(**inputs)[1], inputs["initial_state_BDW"])
    inputs = inputs_of("ssd_scan", **SIZES | {"length": 0})
    y, final = kernels.ssd_scan(**inputs)
    assert y.shape == (2, 0, 4, 5) and torch.equal(final, inputs["initial_state_BHPN"])


@pytest.mark.parametrize("name", ["ssd_scan", "ssd_step", "causal_conv1d", "gated_rms_norm"])
def test_autocast_changes_nothing(name):
    op = OPS[name]
    inputs = op.inputs(op.cases[0], DEVICE, torch.float32, 3)
    for impl in implementations(op):
        plain = op.function(**inputs, impl=impl)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            cast = op.function(**inputs, impl=impl)
        for first, other in zip(as_tuple(plain), as_tuple(cast), strict=True):
            assert other.dtype == torch.float32 and torch.equal(first, other)


@pytest.mark.parametrize("name", ["ssd_scan", "ssd_step", "causal_conv1d", "gated_rms_norm"])
def test_an_input_without_gradient_needs_none(name):
    op = OPS[name]
    inputs = op.inputs(op.cases[0], DEVICE, torch.float32, 3)
    for impl in implementations(op):
        first = next(iter(inputs))
        leaf = inputs[first].clone().requires_grad_()
        results = as_tuple(op.function(**inputs | {first: leaf}, impl=impl))
        (gradient,) = torch.autograd.grad(results[0].sum(), leaf)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["ssd_scan", "ssd_step"])
@pytest.mark.parametrize("size", [float("nan"), -float("inf"), 25.0, -25.0])
def test_a_step_size_that_is_no_number_is_seen_in_the_results(name, size):
    op = OPS[name]
    sizes = {n: s for n, s in SIZES.items() if n != "length" or name == "ssd_scan"}
    sizes |= {"bias": False} | ({"length": 5} if name == "ssd_scan" else {})
    inputs = op.inputs(Case("state", sizes), DEVICE, torch.float32, 3)
    dt = next(n for n in inputs if n.startswith("dt_B"))
    inputs[dt][0].fill_(size)
    expected = op.reference(**inputs)
    for impl in implementations(op):
        results = op.implementations[impl](*inputs.values())
        for result, other in zip(results, expected, strict=True):
            torch.testing.assert_close(result, other, rtol=1e-4, atol=1e-4, equal_nan=True)


def steps(name: str, impl: str) -> list[dict[str, torch.Tensor]]:
    """Return the inputs of three decoding steps, in the dtype that ``impl`` takes."""
    op, sizes = OPS[name], {"batch": 2, "length": 1, "width": 4, **SIZES, "update": True}
    sizes = sizes | {"length": 1, "log": True}
    drawn = [op.inputs(Case("step", sizes), DEVICE, torch.float32, seed) for seed in range(3)]
    wide = torch.float32 if impl == "triton" else torch.float64
    return [
        {n: x.to(wide) if isinstance(x, torch.Tensor) else x for n, x in step.items()}
        for step in drawn
    ]


@pytest.mark.parametrize("is_contiguous", [True, False])
@pytest.mark.parametrize(
    ("name", "impl"),
    [(n, i) for n in ("ssd_step", "causal_conv1d") for i in implementations(OPS[n])],
)
def test_steps_that_update_a_state_leave_what_steps_that_return_one_compute(
    name, impl, is_contiguous
):
    op = OPS[name]
    state_name = op.written(True)[0]
    inputs = steps(name, impl)
    expected = inputs[0][state_name].clone()
    memory = expected.new_zeros(*expected.shape[:-1], 2 * expected.shape[-1])
    state = memory[..., ::2] if not is_contiguous else torch.empty_like(expected)
    state.copy_(expected)
    for step in inputs:
        y, expected = op.function(**step | {state_name: expected, "update_state": False}, impl=impl)
        before = state._version
        actual, returned = op.function(**step | {state_name: state}, impl=impl)
        assert returned is state and state._version > before
        torch.testing.assert_close(actual, y)
        torch.testing.assert_close(state, expected)
    assert not memory[..., 1::2].any(), "nothing is written beside the state"


@pytest.mark.parametrize("impl", implementations(OPS["ssd_step"]))
def test_a_decay_may_be_given_as_its_logarithm(impl):
    inputs = steps("ssd_step", impl)[0] | {"update_state": False}
    decay = -inputs["A_H"].exp()
    results = kernels.ssd_step(**inputs, impl=impl)
    expected = kernels.ssd_step(**inputs | {"A_H": decay, "log_decay": False}, impl=impl)
    torch.testing.assert_close(results, expected)
