"""Every Triton kernel compiles to machine code that fits the GPU, without wholesale spilling.

Triton's compiler and ptxas need no GPU. The operators run on tensors without memory, forward and
backward, and each launch is compiled for a GPU instead of being launched.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DynamicOutputShapeException, unset_fake_temporarily

from kernels import OPS, Case, Operator
from kernels.attention import _flash, _hopper
from kernels.core import dispatch, triton_helpers, tuning
from kernels.core.check import as_tuple
from kernels.core.operator import Inputs
from kernels.linear import _many_rows

pytestmark = [
    pytest.mark.skipif(not triton_helpers.INSTALLED, reason="Triton is not installed"),
    pytest.mark.skipif(triton_helpers.INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the kernels themselves run"),
]
HOPPER, ADA = 90, 89
SHARED_BYTES = {HOPPER: 227 << 10, ADA: 99 << 10}
# Compiling takes most of the time of these tests, and GPUs rarely compute in FP32.
BOTH = [
    pytest.param(torch.bfloat16, id="bf16"),
    pytest.param(torch.float32, id="fp32", marks=pytest.mark.slow),
]
LONG = ("adaptive_attention", "moe_experts")  # most of a minute each
# bytes per thread; more means a tile that cannot work, not a few spilled registers
MOST_STACK = 640
# Ada's matrix units take both operands from registers, and this kernel has five products.
KNOWN_STACK = {(ADA, "ssd_scan_head_gradients_kernel"): 1280}
WITH_TRITON = sorted(name for name, op in OPS.items() if "triton" in op.implementations)
# The sizes of the operator's own compile test: equal kernels are compiled once.
HEADS = next(case.sizes for case in OPS["attention"].cases if case.bench)


class NoDriver:
    """Stub of Triton's driver, sufficient for compiling."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.target.arch  # kernels compiled for one GPU are not used for another

    def get_current_stream(self, device=None):
        return 0


@pytest.fixture
def compiled(monkeypatch):
    """Compile every launch of a call for a GPU; return name, shared bytes and stack of each.

    ``own``: use Hopper's own kernels where they exist.
    """
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction, MockTensor

    run = JITFunction.run
    launches: dict[str, tuple[str, int, int]] = {}

    def compile_only(self, *args, grid, warmup, **options):
        def mock(value):
            return MockTensor(value.dtype) if isinstance(value, torch.Tensor) else value

        named = {name: mock(value) for name, value in options.items()}
        kernel = run(self, *map(mock, args), grid=grid, warmup=True, **named)
        if kernel.hash not in launches:
            stack = stack_bytes(kernel.asm["cubin"])
            launches[kernel.hash] = (self.__name__, kernel.metadata.shared, stack)
        return kernel

    def compile_for(capability, op: Operator, case: Case, dtype, describable=True, own=True):
        describable = describable and capability >= HOPPER
        for module in (_flash, _hopper, _many_rows):
            monkeypatch.setattr(module, "describable", lambda *_: describable)
        for module in (_hopper, _many_rows):
            monkeypatch.setattr(module, "is_hopper", lambda _: own and capability == HOPPER)
        launches.clear()
        driver.set_active(NoDriver(capability))
        monkeypatch.setattr(JITFunction, "run", compile_only)
        monkeypatch.setattr(dispatch, "_missing_once", lambda *_: "")
        for name, module in sys.modules.items():
            if name.startswith("kernels.") and hasattr(module, "shared_bytes"):
                monkeypatch.setattr(module, "shared_bytes", lambda _: SHARED_BYTES[capability])
        call(op, case, dtype)
        return list(launches.values())

    yield compile_for
    driver._active = None  # reset_active would look for a GPU


def stack_bytes(cubin: bytes) -> int:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True)
    return int(re.search(r"STACK:(\d+)", usage.stdout)[1])


def without_memory(op: Operator, case: Case, dtype, mode: FakeTensorMode) -> Inputs:
    """Make the case's inputs; those that are chosen by their values are made with memory first."""
    try:
        return op.inputs(case, torch.device("cpu"), dtype, 0)
    except DynamicOutputShapeException:
        with unset_fake_temporarily():
            inputs = op.inputs(case, torch.device("cpu"), dtype, 0)
        return {
            name: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x
            for name, x in inputs.items()
        }


def call(op: Operator, case: Case, dtype) -> None:
    """Run forward and backward on tensors that have no memory."""
    implementation = op.implementations["triton"]
    with FakeTensorMode() as mode:
        inputs = without_memory(op, case, dtype, mode)
        leaves = [inputs[n].requires_grad_() for n in op.differentiable(inputs)]
        refused = implementation.refuses and implementation.refuses(*inputs.values())
        assert not refused, refused
        live = [y for y in as_tuple(implementation(*inputs.values())) if y.requires_grad]
        if live:
            torch.autograd.grad(live, leaves, [torch.empty_like(y) for y in live])


def largest(op: Operator, dtype) -> Case:
    """Return the first case worth timing, or else the first, that kernels take in this dtype."""
    refuses = op.implementations["triton"].refuses
    with FakeTensorMode() as mode:
        for case in sorted(op.cases, key=lambda case: not case.bench):
            inputs = without_memory(op, case, dtype, mode)
            if not (refuses and refuses(*inputs.values())):
                return case
    raise AssertionError(f"{op.name} takes no case in {dtype}")


def assert_fit(launches, capability) -> None:
    assert launches, "nothing was launched"
    limit = SHARED_BYTES[capability]
    greedy = [f"{name}: {shared} bytes" for name, shared, _ in launches if shared > limit]
    assert not greedy, f"more than the {limit} bytes of shared memory that there are: {greedy}"
    spilled = [
        f"{name}: {stack} bytes"
        for name, _, stack in launches
        if stack > KNOWN_STACK.get((capability, name), MOST_STACK)
    ]
    assert not spilled, f"registers spilled: {spilled}"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in WITH_TRITON],
)
@pytest.mark.parametrize("dtype", BOTH)
def test_the_kernels_of_an_operator_compile_for_hopper(compiled, name, dtype):
    op = OPS[name]
    launches = compiled(HOPPER, op, largest(op, dtype), dtype)
    assert_fit(launches, HOPPER)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ssd_step", {"heads": 24, "dim": 64, "groups": 1, "states": 128, "log": True}),
        ("causal_conv1d", {"length": 1, "dim": 1792, "width": 4}),
    ],
)
def test_the_kernels_of_a_decoding_step_compile_for_hopper(compiled, name, sizes):
    case = Case("decode", sizes | {"batch": 1, "update": True})
    assert_fit(compiled(HOPPER, OPS[name], case, torch.bfloat16), HOPPER)


@pytest.mark.skipif(not triton_helpers.GLUON, reason="this Triton has no groups of warps")
@pytest.mark.parametrize("rows", [8192, 200])  # tiles of 128 outputs, and of 64
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gated_product_of_many_rows_compiles_for_hopper(compiled, rows, dtype):
    case = Case("many rows", {"rows": rows, "k": 768, "n": 2048, "gated": True})
    launches = compiled(HOPPER, OPS["fused_linear"], case, dtype)
    assert_fit(launches, HOPPER)
    assert [name for name, *_ in launches] == ["linear_many_rows_kernel"]
    assert not any(stack for *_, stack in launches)


@pytest.mark.skipif(not triton_helpers.GLUON, reason="this Triton has no groups of warps")
@pytest.mark.parametrize(
    ("heads", "dim", "norm", "batch"),  # a tile of 128 columns, and of 256
    [(12, 64, True, 8), (32, 128, False, 4), (6, 32, True, 1)],
)
def test_heads_are_rotated_in_their_projection_on_hopper(compiled, heads, dim, norm, batch):
    sizes = {"batch": batch, "length": 1024, "heads": heads, "kv_heads": 2, "dim": dim}
    case = Case("heads", sizes | {"width": 768, "norm": norm})
    launches = compiled(HOPPER, OPS["qkv_rope"], case, torch.bfloat16)
    assert_fit(launches, HOPPER)
    assert [name for name, *_ in launches] == ["linear_many_rows_kernel"]
    assert not any(stack for *_, stack in launches)


def test_a_router_of_many_experts_compiles_with_the_product_of_torch(compiled):
    case = Case("E130", {"rows": 33, "dim": 2048, "experts": 130, "k": 2})
    assert_fit(compiled(HOPPER, OPS["moe_gating"], case, torch.bfloat16), HOPPER)


@pytest.mark.parametrize("capability", [HOPPER, pytest.param(ADA, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("dim", "dtype"),
    [
        (64, torch.bfloat16),
        (128, torch.bfloat16),
        pytest.param(256, torch.float16, marks=pytest.mark.slow),
        pytest.param(128, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_attention_s_tiles_fit_every_head_dimension(compiled, capability, dim, dtype):
    case = Case(f"D{dim}", HEADS | {"dim": dim})
    assert_fit(compiled(capability, OPS["attention"], case, dtype, own=False), capability)


@pytest.mark.skipif(not triton_helpers.GLUON, reason="this Triton has no groups of warps")
@pytest.mark.parametrize("dim", _hopper.DIMS)
@pytest.mark.parametrize(
    ("tile", "heads", "split", "window"),
    [
        (0, 32, 1, None),
        (1, 24, 3, 1000),
        pytest.param(1, 24, 1, None, marks=pytest.mark.slow),
        pytest.param(1, 24, 3, None, marks=pytest.mark.slow),
        pytest.param(0, 24, 1, 100, marks=pytest.mark.slow),
    ],
)
def test_attention_on_hopper_has_kernels_of_its_own(
    compiled, monkeypatch, dim, tile, heads, split, window
):
    choice = _hopper.tiles(0, torch.bfloat16, dim, True, False)[-1 - tile]
    monkeypatch.setattr(_hopper.FORWARD, "tile", lambda *_: choice)
    monkeypatch.setattr(_hopper, "_split", lambda *_: split)
    case = Case(f"D{dim}", HEADS | {"dim": dim, "heads": heads, "window": window})
    launches = compiled(HOPPER, OPS["attention"], case, torch.bfloat16)
    assert_fit(launches, HOPPER)
    own = {"attention_hopper_kernel"}
    if dim == 128 or heads == 24:
        own |= {f"attention_{x}_kernel" for x in ("pack_rows", "hopper_dkdv", "hopper_dq")}
    if split > 1:
        own |= {"attention_add_parts_kernel"}
    assert own <= {name for name, *_ in launches}


def test_attention_s_tiles_fit_where_blocks_cannot_be_described(compiled):
    case = Case("D128", HEADS | {"dim": 128})
    launches = compiled(HOPPER, OPS["attention"], case, torch.bfloat16, describable=False)
    assert_fit(launches, HOPPER)


@pytest.mark.parametrize("capability", [HOPPER, ADA])
@pytest.mark.parametrize("dtype", BOTH)
def test_the_scan_s_tiles_fit(compiled, capability, dtype):
    sizes = {"batch": 2, "length": 512, "heads": 8, "dim": 64, "groups": 1, "states": 128}
    case = Case("P64 N128", sizes | {"state": False})
    assert_fit(compiled(capability, OPS["ssd_scan"], case, dtype), capability)


def test_adaptive_attention_s_branches_fit_small_shared_memory(compiled):
    op = OPS["adaptive_attention"]
    case = largest(op, torch.bfloat16)
    assert_fit(compiled(ADA, op, case, torch.bfloat16), ADA)


@pytest.mark.parametrize("capability", [HOPPER, ADA])
@pytest.mark.parametrize("dim", [64, 768, 4096, 8192, 32768])
def test_the_pipelined_rows_of_a_norm_s_backward_pass_fit(compiled, capability, dim):
    case = Case(f"x{dim}", {"rows": 4096, "dim": dim})
    for name, dtype in (("add_rms_norm", torch.bfloat16), ("rms_norm", torch.float32)):
        assert_fit(compiled(capability, OPS[name], case, dtype), capability)


def test_a_graph_of_as_many_slots_as_are_taken_fits(compiled):
    for capability, slots in ((HOPPER, 128), (ADA, 64)):
        case = Case("large", {"rows": 512, "slots": slots, "steps": 4})
        assert_fit(compiled(capability, OPS["graph_diffusion"], case, torch.float32), capability)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("capability", [HOPPER, ADA])
@pytest.mark.parametrize("name", WITH_TRITON)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_every_tile_that_is_tuned_over_compiles_and_most_fit(
    compiled, monkeypatch, capability, name, dtype
):
    op, tried = OPS[name], [0]
    case, number = largest(op, dtype), 0

    def tile(self, key, launch, *args):
        complete = (*key, "highest") if self.dots else key
        candidates = list(dict.fromkeys(self.candidates(*complete)))
        assert len(candidates) <= 8, f"{self.name} has {len(candidates)} candidates"
        tried[0] = max(tried[0], len(candidates))
        return candidates[min(number, len(candidates) - 1)]

    monkeypatch.setattr(tuning.Tunable, "tile", tile)
    greedy = []
    while number == 0 or number < tried[0]:
        launches = compiled(capability, op, case, dtype)
        assert launches, "nothing was launched"
        greedy.append(any(shared > SHARED_BYTES[capability] for _, shared, _ in launches))
        number += 1
    assert not greedy[0] and sum(greedy) <= number // 2, greedy
