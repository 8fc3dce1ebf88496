"""Offsets beyond 32 bits: elements 2^31 apart without the memory in between.

Where kernels are interpreted, an offset overflows as on a GPU. Untouched pages of a mapping take no
memory, so inputs may be arbitrarily far apart; results may not.
"""

import dataclasses
import mmap
import sys

import pytest
import torch
from subjects import DEVICE, OPERATORS, fitting, operators

from kernels import Case, Operator
from kernels.core.check import as_tuple, end_of_huge
from kernels.core.operator import Huge
from kernels.core.triton_helpers import INTERPRETED

FAR = 1 << 31
# These use the same kernels as others here, or would take most of the time of all.
LONG = (
    *("ssd_scan-0", "qk_norm-0", "rope-0", "geglu-0", "geglu-1", "attention-1", "causal_conv1d-1"),
    "graph_diffusion-1",
)
NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python names from 3.13 on
HUGE = [
    pytest.param(op.values[0], huge, id=f"{op.id}-{number}")
    for op in operators()
    for number, huge in enumerate(op.values[0].huge)
]


def small(huge: Huge) -> Case:
    """Return the same case with few of everything, but at least three of what was many."""
    most = {"rows": 3, "batch": 3}
    sizes = {n: min(v, most.get(n, 6)) if type(v) is int else v for n, v in huge.sizes.items()}
    return Case("small", sizes)


@pytest.mark.skipif(INTERPRETED, reason="the plain implementations show it in less time")
@pytest.mark.parametrize(("op", "huge"), HUGE)
def test_the_end_of_many_is_right_with_all_that_comes_of_it(op: Operator, huge: Huge):
    inputs = op.inputs(small(huge), DEVICE, huge.dtype, 0)
    for name, implementation in fitting(op, inputs).items():
        compared = end_of_huge(op, inputs, implementation, huge)
        gradients = [c for c in compared if c.name.startswith("gradient")]
        assert len(gradients) == sum(inputs.get(n) is not None for n in op.gradients), name
        assert len(compared) > len(gradients), "an output too"
        assert not [str(c) for c in compared if not c.right], name


@pytest.mark.skipif(INTERPRETED, reason="of no kernel")
@pytest.mark.parametrize("of", ["output", "gradient"])
def test_a_wrong_end_is_seen(of):
    (op,) = (p.values[0] for p in operators() if p.id == "token_scatter")

    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            last = torch.arange(len(x)) == len(x) - 1
            return x + (0.5 * (of == "output") * last).view(-1, 1, 1).to(x)

        @staticmethod
        def backward(ctx, dx):
            return dx * (0.5 if of == "gradient" else 1)

    def call(x, *rest):
        return op.reference(Off.apply(x), *rest)

    inputs = op.inputs(small(op.huge[0]), torch.device("cpu"), torch.float16, 0)
    wrong = [c.name for c in end_of_huge(op, inputs, call, op.huge[0]) if not c.right]
    assert wrong == ["output 0" if of == "output" else "gradient of x_BSD"]


def test_every_triton_kernel_is_asked_for_the_end_of_a_huge_tensor():
    assert not [p.id for p in operators() if "triton" in p.values[0].implementations
                and not p.values[0].huge]  # fmt: skip


@pytest.mark.parametrize(("op", "huge"), HUGE)
def test_the_triton_kernel_takes_huge_inputs(op: Operator, huge: Huge):
    inputs = op.inputs(small(huge), DEVICE, huge.dtype, 0)
    refuses = op.implementations["triton"].refuses
    assert refuses is None or refuses(*inputs.values()) is None


class FarApart:
    """Copies of tensors in which every dimension but the last extends over 2^31 elements.

    There is as much room before each as behind: an overflow reads zeros there.
    """

    def __init__(self):
        self.mappings = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        room = FAR * x.dim()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        mapping = mmap.mmap(-1, 2 * room * x.element_size(), flags=flags)
        self.mappings.append(mapping)
        # Rows that no two dimensions share, and strides that still fit 32 bits.
        strides = [
            max(FAR // (n - 1) + 4096 * (dim + 1), 1) if n > 2 else 1 << 20 << dim
            for dim, n in enumerate(x.shape[:-1])
        ]
        memory = torch.frombuffer(mapping, dtype=x.dtype)
        far = torch.as_strided(memory, x.shape, (*strides, 1), room)
        far.copy_(x)
        assert torch.equal(far, x), "no two elements in one place"
        return far


@pytest.mark.skipif(not INTERPRETED, reason="where kernels are interpreted memory costs nothing")
@pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is not reserved")
@pytest.mark.parametrize(
    ("op", "huge"),
    [pytest.param(*p.values, id=p.id, marks=[pytest.mark.slow] * (p.id in LONG)) for p in HUGE],
)
def test_inputs_and_gradients_may_lie_billions_of_elements_apart(op: Operator, huge: Huge):
    case = dataclasses.replace(small(huge), name="far")
    plain = op.inputs(case, DEVICE, huge.dtype, 0)
    apart = FarApart()

    def far(x):
        fits = isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() > 1
        return apart(x.detach()) if fits else x

    results = []
    for transform in (lambda x: x, far):
        inputs = {name: transform(x) for name, x in plain.items()}
        names = op.differentiable(inputs)
        leaves = {n: inputs[n].detach().requires_grad_() for n in names}
        outputs = as_tuple(op.implementations["triton"](*(inputs | leaves).values()))
        live = [y for y in outputs if y.requires_grad]
        upstream = [transform(torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)) for y in live]
        gradients = torch.autograd.grad(live, list(leaves.values()), upstream) if live else ()
        results.append([*outputs, *gradients])
    for near, distant in zip(*results, strict=True):
        assert torch.equal(near, distant)


@pytest.mark.skipif(not INTERPRETED, reason="where kernels are interpreted memory costs nothing")
@pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is not reserved")
def test_step_sizes_of_heads_may_lie_billions_of_elements_apart():
    """The last dimension of dt has a stride, too: dt may be a transposed tensor."""
    if "ssd_scan" not in OPERATORS:
        pytest.skip("another operator is tested")
    op = OPERATORS["ssd_scan"]
    sizes = {"batch": 1, "length": 5, "heads": 3, "dim": 4, "groups": 1, "states": 4}
    inputs = op.inputs(Case("far", sizes), DEVICE, torch.float32, 0)
    apart = FarApart()
    far = apart(inputs["dt_BLH"].transpose(1, 2)).transpose(1, 2)
    assert (far.shape[2] - 1) * far.stride(2) >= FAR > far.stride(2)
    call = op.implementations["triton"]
    for near, distant in zip(
        call(*inputs.values()), call(*(inputs | {"dt_BLH": far}).values()), strict=True
    ):
        assert torch.equal(near, distant)
