"""The error of quantisation is bounded, and its gradient passes straight through."""

import pytest
import torch
from subjects import DEVICE

import kernels
from kernels import Unavailable
from kernels.core.triton_helpers import INTERPRETED
from kernels.quantized_matmul import SCHEMES, quantize

pytestmark = pytest.mark.skipif(INTERPRETED, reason="has no Triton kernel")
M, K, N = 37, 96, 48


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Draw values over many magnitudes, with a zero row."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * torch.randn(shape, generator=generator).exp()
    values[0] = 0
    return values.to(DEVICE)


def half_steps(values: torch.Tensor, scheme: str) -> torch.Tensor:
    """Return the largest error of each code; 1e-5 for rounding of the scale itself."""
    _, scale = quantize(values, scheme)
    scale = scale.double() * (1 + 1e-5)
    if SCHEMES[scheme] == torch.int8:
        return (scale / 2).expand(values.shape)
    return torch.maximum(values.double().abs() / 16 * (1 + 1e-5), scale / 1024)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_value_is_off_by_at_most_half_a_step_and_some_by_nearly_that(scheme):
    values = drawn(200, K, seed=0)
    codes, scale = quantize(values, scheme)
    off = (codes.double() * scale - values).abs()
    allowed = half_steps(values, scheme)
    assert (off <= allowed).all()
    assert (off > 0.9 * allowed).any(), "the bound is one that is reached"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_product_is_within_half_steps_times_the_norms_of_the_unquantised_one(scheme):
    x, weight = drawn(M, K, seed=1), drawn(N, K, seed=2)
    y = kernels.quantized_matmul(x, *kernels.quantize_weight(weight, scheme), scheme)
    e_x = half_steps(x, scheme) if scheme != "int8_weight_only" else torch.zeros_like(x).double()
    e_w = half_steps(weight, scheme)
    x, weight = x.double(), weight.double()
    bound = e_x @ weight.abs().T + x.abs() @ e_w.T + e_x @ e_w.T
    off = (y - x @ weight.T).abs()
    assert (off <= bound * (1 + 1e-5)).all()
    assert off.max() > 0, "something was quantised"
    norms = {
        "x": x.abs().sum(-1, keepdim=True) + e_x.sum(-1, keepdim=True),
        "weight": weight.abs().sum(-1),
    }
    if SCHEMES[scheme] == torch.int8:  # one step per row: the sums are steps times 1-norms
        assert torch.allclose(bound, e_x[:, :1] * norms["weight"] + norms["x"] * e_w[:, 0])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("impl", ["auto", "torch"])
def test_the_gradient_passes_straight_through_to_x_alone(scheme, impl):
    codes, scale = kernels.quantize_weight(drawn(N, K, seed=3), scheme)
    x = drawn(2, 5, K, seed=4).requires_grad_()
    y = kernels.quantized_matmul(x, codes, scale, scheme, impl=impl)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    weight = codes.float() * scale.unsqueeze(-1)
    torch.testing.assert_close(dx, dy @ weight)


@pytest.mark.parametrize(
    ("scheme", "impl"),
    [("int8_dynamic", "auto"), ("int8_weight_only", "dequantize"), ("fp8_row", "torch")],
)
def test_what_follows_in_training_may_write_over_the_product(scheme, impl):
    """A user's own model may apply an activation in place."""
    x = drawn(2, 32, K, seed=5).requires_grad_()
    quantized = kernels.quantize_weight(drawn(N, K, seed=6), scheme)
    plain = kernels.quantized_matmul(x, *quantized, scheme, impl=impl).relu().sum()
    written = kernels.quantized_matmul(x, *quantized, scheme, impl=impl).relu_().sum()
    expected, actual = (torch.autograd.grad(y, x)[0] for y in (plain, written))
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("scheme", ["int8_dynamic", "int8_weight_only", "fp8_row"])
def test_a_row_does_not_depend_on_the_other_rows(scheme):
    codes, scale = kernels.quantize_weight(drawn(N, K, seed=5), scheme)
    x = drawn(M, K, seed=6)
    full = kernels.quantized_matmul(x, codes, scale, scheme)
    x[5:] *= 100
    torch.testing.assert_close(kernels.quantized_matmul(x, codes, scale, scheme)[:5], full[:5])


def test_autocast_decides_the_dtype():
    x, weight = drawn(4, K, seed=7), kernels.quantize_weight(drawn(N, K, seed=8))
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert kernels.quantized_matmul(x, *weight).dtype == torch.bfloat16


@pytest.mark.skipif(DEVICE.type != "cpu", reason="here FP8 may run")
def test_where_there_is_no_fp8_that_is_said():
    codes, scale = kernels.quantize_weight(drawn(N, K, seed=9), "fp8_row")
    with pytest.raises(Unavailable) as caught:
        kernels.quantized_matmul(drawn(4, K, seed=7), codes, scale, "fp8_row", impl="scaled_mm")
    assert str(caught.value) == (
        "quantized_matmul: 'scaled_mm' cannot run: torch's FP8 product needs a CUDA GPU, not cpu"
    )


def test_an_implementation_that_does_not_know_the_scheme_says_so():
    codes, scale = kernels.quantize_weight(drawn(N, K, seed=9), "int8_weight_only")
    with pytest.raises(Unavailable, match="supports int8_dynamic and not int8_weight_only"):
        kernels.quantized_matmul(
            drawn(4, K, seed=7), codes, scale, "int8_weight_only", impl="int_mm"
        )
