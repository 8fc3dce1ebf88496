"""Operators under torch.compile: one graph, the same numbers, and respected choices."""

import ast
import dataclasses
import sys
from pathlib import Path

import pytest
import torch
import torch.utils._triton
from subjects import WRITING, pretend_to_compile
from test_kernels_compile import HOPPER, NoDriver

import kernels
from kernels import OPS, Case, Operator
from kernels.core import dispatch
from kernels.core.check import Exact
from kernels.core.triton_helpers import INSTALLED, INTERPRETED
from kernels.linear_cross_entropy import ALIGNMENT

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter cannot be traced")
CPU = torch.device("cpu")
WITH_TRITON = sorted(name for name, op in OPS.items() if "triton" in op.implementations)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    kernels.reset_usage()
    yield
    torch._dynamo.reset()


def by_name(op: Operator, names):
    return lambda *args: op.function(**dict(zip(names, args, strict=True)))


@pytest.mark.sample(13)
@pytest.mark.parametrize("name", sorted(OPS))
def test_a_compiled_operator_is_one_graph_and_as_right_as_an_eager_one(name):
    op = OPS[name]
    inputs = op.inputs(op.cases[0], CPU, torch.float32, 0)
    exact = Exact(op, inputs)
    compiled = torch.compile(by_name(op, inputs), fullgraph=True, backend="aot_eager")
    wrong = [str(c) for c in exact.judge(exact.results(compiled)) if not c.right]
    assert not wrong
    assert name in kernels.usage(), "the choice made while tracing is recorded"


def test_an_operator_that_never_ran_before_is_traced():
    op = dataclasses.replace(OPS["rope_to_cache"])  # without what a call would have cached
    arguments = tuple(op.inputs(op.cases[0], CPU, torch.float32, 0).values())
    compiled = torch.compile(
        lambda *args: op.written_tensors(args), fullgraph=True, backend="eager"
    )
    assert compiled(*arguments).keys() == op.written_tensors(arguments).keys()


@pytest.mark.parametrize("name", ["rope", "qk_norm_rope"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_compiled_heads_are_laid_out_by_tokens_as_the_next_projection_reads_them(
    name, interleaved, monkeypatch
):
    op = OPS[name]
    inputs = op.inputs(op.cases[0], CPU, torch.float32, 0) | {"interleaved": interleaved}
    pretend_to_compile(monkeypatch)
    with torch._subclasses.FakeTensorMode():
        arguments = {
            n: torch.empty_strided(x.shape, x.stride(), device="cuda") if torch.is_tensor(x) else x
            for n, x in inputs.items()
        }
        for x_BHSD in op.reference(*arguments.values()):
            assert x_BHSD.transpose(1, 2).is_contiguous()


# Inductor takes seconds for a call, so that only the last case of each operator is compiled.
@pytest.mark.parametrize(("op", "case"), {case.values[0].name: case for case in WRITING}.values())
def test_a_compiled_call_writes_into_its_input(op, case):
    inputs = op.inputs(case, CPU, torch.float32, 0)
    exact = Exact(op, inputs)
    compiled = torch.compile(by_name(op, inputs), fullgraph=True)
    for _ in range(2):
        assert not [str(c) for c in exact.judge(exact.results(compiled)) if not c.right]
    assert any(name.endswith("after the call") for name in exact.exact)


@pytest.mark.sample(4)
@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU check_kernels compiles in earnest")
@pytest.mark.parametrize(("op", "case"), WRITING)
def test_inductor_lets_a_kernel_write_into_an_input_and_copies_nothing(op, case, monkeypatch):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._guards import detect_fake_mode
    from torch._inductor.fx_passes.post_grad import decompose_triton_kernel_wrapper_functional
    from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops
    from torch._inductor.fx_utils import FakeTensorUpdater
    from torch._inductor.virtualized import V

    graphs = []

    def as_inductor(graph, inputs):
        with V.set_fake_mode(detect_fake_mode(inputs)):
            reinplace_inplaceable_ops(FakeTensorUpdater(graph), graph.graph)
            decompose_triton_kernel_wrapper_functional(graph.graph)
        graphs.append(graph.graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=as_inductor, keep_inference_input_mutations=True)
    with torch.no_grad():
        trace_on_fake_gpu(op, case, backend, monkeypatch)
    (graph,) = graphs
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert called.count("triton_kernel_wrapper_mutation") == 1
    assert not [name for name in called if "copy" in name or "clone" in name], called


def test_calls_of_a_compiled_function_neither_recompile_nor_count():
    compiled = torch.compile(lambda x: kernels.rms_norm(x), fullgraph=True, backend="eager")
    x = torch.randn(3, 8)
    torch._dynamo.utils.counters.clear()
    for _ in range(4):
        compiled(x)
    assert kernels.usage() == {"rms_norm": {"torch": 1}}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_changed_choice_is_heeded_by_a_compiled_function():
    compiled = torch.compile(lambda q: kernels.attention(q, q, q), fullgraph=True, backend="eager")
    q = torch.randn(1, 2, 9, 8)
    for backend in ("manual", "chunked", "manual"):
        with kernels.using(attention=backend):
            compiled(q)
    assert kernels.usage() == {"attention": {"manual": 1, "chunked": 1}}


@pytest.mark.parametrize("words", [1024, 1000])
def test_a_loss_compiled_under_autocast_is_one_graph_and_what_it_is_eagerly(words):
    case = Case("autocast", {"rows": 63, "dim": 100, "words": words})
    inputs = OPS["linear_cross_entropy"].inputs(case, CPU, torch.float32, 0)
    x = inputs.pop("x").requires_grad_()

    def slope(call):
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(x)
        return loss.detach(), *torch.autograd.grad(loss, x)

    def call(x):
        return kernels.linear_cross_entropy(x, **inputs, impl="chunked")

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    # Eagerly, the last words are a product of their own, and what it adds is rounded separately.
    rounding = 0.0 if words % ALIGNMENT == 0 else torch.finfo(torch.bfloat16).eps
    most = rounding * slope(call)[1].abs().max().item()
    torch.testing.assert_close(slope(compiled), slope(call), rtol=0, atol=most)


@pytest.mark.sample(8)
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU check_kernels compiles in earnest")
@pytest.mark.parametrize(
    "name", sorted(n for n, op in OPS.items() if "triton" in op.implementations)
)
def test_the_triton_path_forward_and_backward_traces_to_one_graph(name, monkeypatch):
    """Traced on tensors that claim to be on a GPU; nothing is launched."""
    op = OPS[name]
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    trace_on_fake_gpu(op, op.cases[0], keep, monkeypatch)
    assert len(graphs) == 1
    code = str(graphs[0].print_readable(print_output=False))
    launches = code.count("triton_kernel_wrapper") + code.count("ops.workbench.")
    assert launches >= (2 if op.gradients else 1), "forward and backward kernels are in the graph"


def trace_on_fake_gpu(op: Operator, case: Case, backend, monkeypatch) -> None:
    """Compile a call of the Triton implementation on tensors that claim to be on a GPU."""
    from triton.runtime import driver

    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda *_, **__: True)
    monkeypatch.setattr(driver, "_active", NoDriver(HOPPER))
    dispatch._missing_once.cache_clear()
    monkeypatch.setattr(dispatch, "_missing_once", lambda *_: "")
    inputs = op.inputs(case, CPU, torch.float32, 0)
    trained = op.differentiable(inputs)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = {}
        for key, value in inputs.items():
            if isinstance(value, torch.Tensor):
                value = mode.from_tensor(value)
                value = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="cuda"
                )
                value.requires_grad_(key in trained)
            fake[key] = value
        with kernels.using(**{op.name: "triton"}):
            torch.compile(by_name(op, fake), fullgraph=True, backend=backend)(*fake.values())


@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
def test_what_a_kernel_calls_has_the_name_by_which_inductor_copies_it():
    """Inductor writes the source of each function that a kernel calls beside the kernel's own."""
    from triton.runtime.jit import JITFunction

    modules = [module for name, module in sys.modules.items() if name.startswith("kernels.")]
    functions = {value for m in modules for value in vars(m).values() if type(value) is JITFunction}
    called = {
        (name, function.__globals__[name].fn.__name__)
        for function in functions
        for name in function.fn.__code__.co_names
        if isinstance(function.__globals__.get(name), JITFunction)
    }
    assert len(called) > 20
    assert [pair for pair in called if pair[0] != pair[1]] == []


def numbers_with_methods(source):
    """Return the number parameters of kernels whose attributes are read, with the kernel's name."""
    for kernel in ast.walk(ast.parse(source)):
        if not isinstance(kernel, ast.FunctionDef) or not kernel.args.args[:1]:
            continue
        if not kernel.args.args[0].arg.endswith("_ptr"):
            continue  # called by kernels
        numbers = {
            parameter.arg
            for parameter in kernel.args.args
            if parameter.annotation is None and not parameter.arg.endswith("_ptr")
        }
        for node in ast.walk(kernel):
            value = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(value, ast.Name) and value.id in numbers:
                yield kernel.name, value.id


def test_no_kernel_calls_a_method_of_a_number():
    """torch.compile passes Python numbers when it looks for what a kernel writes.

    If that fails, it takes every input for written, and copies all of them at each call.
    """
    planted = "def kernel(x_ptr, n, D):\n    return n.to(int)"
    assert list(numbers_with_methods(planted)) == [("kernel", "n")]
    sources = sorted(Path(kernels.__file__).parent.rglob("*.py"))
    assert len(sources) > 40
    for source in sources:
        assert list(numbers_with_methods(source.read_text(encoding="utf-8"))) == [], source


def test_numbers_of_heads_may_be_symbols_of_a_compiled_call():
    """A model whose weights are gathered in the step has them, with dynamic shapes."""

    def call(heads_BXSD, queries, groups):
        q, k, v = heads_BXSD.split((queries, groups, groups), dim=1)
        return kernels.attention(q, k, v, backend="sdpa")

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
    for queries, groups in ((4, 2), (3, 3)):
        heads_BXSD = torch.randn(2, queries + 2 * groups, 5, 8)
        expected = call(heads_BXSD, queries, groups)
        torch.testing.assert_close(compiled(heads_BXSD, queries, groups), expected)
