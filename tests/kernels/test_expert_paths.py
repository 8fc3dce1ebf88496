"""The ways to compute a mixture in plain torch: each is right, and named where it ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import kernels
from kernels import OPS, STANDARD, Case, Unavailable, Workspace
from kernels.core.check import Exact
from kernels.core.triton_helpers import INTERPRETED
from kernels.moe_experts._plain import block_rows, compiles

pytestmark = pytest.mark.skipif(INTERPRETED, reason="is about plain torch")
OP = OPS["moe_experts"]
CPU = torch.device("cpu")
PATHS = ("grouped", "padded", "loop", "dense")
ALIGNED = {"rows": 40, "dim": 16, "width": 24, "experts": 6, "k": 2}
CASES = {
    "aligned": ALIGNED,
    "odd": ALIGNED | {"rows": 39, "dim": 15, "width": 7},
    "one expert": ALIGNED | {"experts": 1, "k": 1},
    "all experts": ALIGNED | {"experts": 3, "k": 3},
    "empty experts": ALIGNED | {"experts": 20, "routing": "first"},
    "dropped choices": ALIGNED | {"routing": "dropped", "packed": True, "wide": True},
    "one token": ALIGNED | {"rows": 1, "packed": True},
}


@pytest.fixture(autouse=True)
def fresh():
    kernels.reset_usage()
    yield
    torch._dynamo.reset()


def inputs_of(case: str, dtype=torch.float32):
    return OP.inputs(Case(case, CASES[case]), CPU, dtype, 0)


def called(inputs, impl=None, **more):
    return kernels.moe_experts(*inputs.values(), impl=impl, **more)


@pytest.fixture
def memory_of_nan(monkeypatch):
    """Fill all memory that torch allocates and does not write with NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CASES)
def test_no_path_reads_memory_that_it_has_not_written(memory_of_nan, case, path):
    """Rows of no expert are never written, and so must reach neither outputs nor gradients."""
    inputs = inputs_of(case)
    refuses = OP.implementations[path].refuses
    if refuses(*inputs.values()) is not None:
        return
    learned = {
        name: inputs[name].requires_grad_() for name in OP.gradients if inputs[name] is not None
    }
    y = called(inputs, path)
    y.square().sum().backward()
    assert y.isfinite().all()
    for name, tensor in learned.items():
        assert tensor.grad.isfinite().all(), name


@pytest.mark.sample(7)
@pytest.mark.parametrize("path", [path for path in PATHS if path != "loop"])
@pytest.mark.parametrize("case", CASES)
def test_a_compiled_path_is_one_graph_and_as_right_as_the_definition(case, path):
    inputs = inputs_of(case)
    refuses = OP.implementations[path].refuses
    if refuses(*inputs.values()) is not None:
        with pytest.raises(Unavailable, match="needs rows of a multiple of 16 bytes"):
            called(inputs, path)
        return
    if path == "grouped" and not compiles(torch.float32):
        pytest.skip(f"torch {torch.__version__} compiles its grouped product in BF16 alone")
    exact = Exact(OP, inputs)
    compiled = torch.compile(
        lambda *args: kernels.moe_experts(*args, impl=path), fullgraph=True, backend="aot_eager"
    )
    wrong = [str(c) for c in exact.judge(exact.results(compiled)) if not c.right]
    assert not wrong
    assert kernels.usage() == {"moe_experts": {path: kernels.usage()["moe_experts"][path]}}


LOOP = """
import test_expert_paths as paths, torch
inputs = paths.inputs_of("one token")
torch.compile(lambda: paths.called(inputs, "loop"), backend="eager", fullgraph=True)()
"""


@pytest.mark.slow  # a process of its own, with Inductor
def test_no_compiler_takes_the_loop():
    """In a process of its own: after what Dynamo refuses, later calls free tensors later."""
    command = [sys.executable, "-c", LOOP]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 1 and "waits for the host" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("path", ["grouped", "padded"])
def test_inductor_takes_a_path_with_its_gradients(path):
    inputs = inputs_of("dropped choices")
    leaves = [inputs[n].requires_grad_() for n in ("x", "weight", "gate_EFD", "down_EDF")]

    def loss(impl):
        return called(inputs, impl).square().sum()

    expected = torch.autograd.grad(loss("dense"), leaves)
    actual = torch.autograd.grad(torch.compile(lambda: loss(path), fullgraph=True)(), leaves)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "dtype", "path", "why"),
    [
        ("aligned", torch.float32, "grouped", ""),
        ("aligned", torch.bfloat16, "grouped", ""),
        ("odd", torch.float32, "loop", "needs rows of a multiple of 16 bytes, but 15 numbers of "
         "float32 have 60"),
        ("aligned", torch.float64, "loop", "does not support float64"),
    ],
)  # fmt: skip
def test_torch_stands_for_the_best_path_and_says_why_for_no_better_one(case, dtype, path, why):
    called(inputs_of(case, dtype), "torch")
    ran, reason = kernels.reasons()["moe_experts"]
    assert ran == path and kernels.usage() == {"moe_experts": {path: 1}}
    assert reason == (f"{STANDARD}; grouped: {why}" if why else STANDARD)


def test_automatic_says_which_path_and_why_no_kernel_of_ours():
    called(inputs_of("odd"), "auto")
    ran, reason = kernels.reasons()["moe_experts"]
    assert ran == "loop" and "triton: " in reason and "grouped: needs rows" in reason


def test_compiled_where_grouped_products_do_not_fit_blocks_are_padded():
    inputs = inputs_of("odd")
    torch.compile(lambda: called(inputs, "torch"), fullgraph=True, backend="eager")()
    assert kernels.usage() == {"moe_experts": {"padded": 1}}


@pytest.mark.parametrize("path", ["grouped", "padded", "dense"])
def test_a_path_that_allocates_takes_no_workspace(path):
    with torch.no_grad(), pytest.raises(Unavailable, match="allocates its own memory"):
        called(inputs_of("aligned"), path, workspace=Workspace())
    with torch.no_grad():
        called(inputs_of("aligned"), "torch", workspace=Workspace())
    assert kernels.usage() == {"moe_experts": {"loop": 1}}


def flops(inputs, path):
    with FlopCounterMode(display=False) as counter:
        y = called(inputs, path)
        y.square().sum().backward()
    return counter.get_total_flops()


def test_only_the_dense_path_multiplies_every_token_by_every_expert():
    sizes = {"rows": 512, "dim": 16, "width": 16, "experts": 32, "k": 3}
    inputs = OP.inputs(Case("document", sizes), CPU, torch.float32, 0)
    for name in ("x", "gate_EFD", "up_EFD", "down_EDF"):
        inputs[name].requires_grad_()
    counted = {path: flops(inputs, path) for path in PATHS}
    needed = OP.cost(**inputs)
    needed = needed.forward.flops + needed.backward.flops
    assert counted["grouped"] == counted["loop"] == needed
    assert counted["dense"] > 10 * needed
    assert counted["padded"] <= needed * (1 + sizes["experts"] * block_rows(512 * 3, 32) / 1536)
    assert counted["padded"] < counted["dense"] / 4


def test_on_a_gpu_no_standard_path_waits_for_the_host():
    with FakeTensorMode():
        inputs = {
            name: None if x is None else torch.empty(x.shape, dtype=x.dtype, device="cuda")
            for name, x in inputs_of("aligned").items()
        }
        with kernels.using(moe_experts="torch"):
            assert called(inputs).shape == inputs["x"].shape
    assert kernels.usage() == {"moe_experts": {"padded": 1}}
    assert "9.0 and 10.0; elsewhere torch loops" in kernels.reasons()["moe_experts"][1]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("path", PATHS)
def test_on_a_gpu_each_path_is_as_right_as_the_definition(path, case):
    inputs = OP.inputs(Case(case, CASES[case]), torch.device("cuda"), torch.bfloat16, 0)
    refuses = OP.implementations[path].refuses
    if refuses(*inputs.values()) is not None:
        with pytest.raises(Unavailable):
            called(inputs, path)
        return
    wrong = [str(c) for c in Exact(OP, inputs).compare(OP.implementations[path]) if not c.right]
    assert not wrong


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu_the_standard_path_is_captured_in_a_graph(dtype):
    inputs = OP.inputs(Case("", ALIGNED), torch.device("cuda"), dtype, 0)
    with torch.no_grad():
        expected = called(inputs, "torch")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            actual = called(inputs, "torch")
        graph.replay()
    torch.testing.assert_close(actual, expected)
    assert kernels.usage()["moe_experts"].keys() <= {"grouped", "padded"}
