"""Calls of functions that an operator would compute otherwise stay as they are."""

from __future__ import annotations

import types

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.runner.foreign.attention import attend, patch_attention
from workbench.runner.foreign.mamba import patch_causal_conv1d, patch_ssd_scan
from workbench.runner.foreign.norms import patch_rms_norm
from workbench.runner.foreign.rotary import patch_rope


def half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return q * cos + half(q) * sin, k * cos + half(k) * sin


def apply_rotary_in_fp32(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    y, z = apply_rotary(q.float(), k.float(), cos.float(), sin.float())
    return y.type_as(q), z.type_as(k)


class Promoting(nn.Module):
    def forward(self, *args: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rotary(*args)


class Returning(nn.Module):
    def forward(self, *args: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rotary_in_fp32(*args)


@pytest.mark.parametrize("kind", [Promoting, Returning])
@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16])
def test_a_rotation_by_wide_tables_keeps_its_dtype(kind, table):
    module = kind()
    q, k = (torch.randn(2, 4, 5, 8, dtype=torch.bfloat16) for _ in range(2))
    angles = torch.rand(5, 4).repeat(1, 2)
    call = q, k, angles.cos().to(table), angles.sin().to(table)
    expected = module(*call)
    assert patch_rope(module).sites
    for x, y in zip(module(*call), expected, strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=0.02, atol=0.02)


def causal_conv1d_fn(
    hidden: Tensor, kernel: Tensor, bias: Tensor | None = None, activation: str | None = "silu",
    pad: int = 0, **more: object,
) -> Tensor:  # fmt: skip
    width = kernel.shape[-1]
    y = functional.conv1d(hidden, kernel[:, None], bias, padding=width - 1, groups=len(kernel))
    y = y[..., : hidden.shape[-1]] + pad
    return y if activation is None else functional.silu(y)


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor, *args: object, **named: object) -> Tensor:
        if named.pop("by_name", False):
            return causal_conv1d_fn(hidden=x, kernel=self.weight, **named)
        return causal_conv1d_fn(x, self.weight, *args, **named)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((), {}),
        ((), {"by_name": True}),
        ((), {"activation": None}),
        ((None, None), {}),
        ((), {"pad": 1}),
        ((), {"seq_idx": None}),
    ],
)
def test_a_convolution_uses_the_defaults_and_names_of_the_function(args, named):
    module, x = Convolved(), torch.randn(2, 6, 9)
    expected = module(x, *args, **named)
    assert patch_causal_conv1d(module).sites
    torch.testing.assert_close(module(x, *args, **named), expected)


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
    D: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = True,
) -> Tensor:  # fmt: skip
    dt = dt if dt_bias is None else dt + dt_bias
    dt = functional.softplus(dt) if dt_softplus else dt
    B, C = (m.repeat_interleave(x.shape[2] // B.shape[2], dim=2) for m in (B, C))
    state, outputs = x.new_zeros(len(x), *x.shape[2:], B.shape[3]), []
    for t in range(x.shape[1]):
        added = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        state = state * torch.exp(dt[:, t] * A)[..., None, None] + added
        outputs.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(outputs, dim=1)
    return y if D is None else y + x * D[:, None]


class Scanned(nn.Module):
    def forward(self, *args: Tensor, **named: object) -> Tensor:
        return mamba_chunk_scan_combined(*args, chunk_size=4, **named)


@pytest.mark.parametrize("named", [{}, {"dt_softplus": False}])
def test_a_scan_uses_the_defaults_of_the_function(named):
    module = Scanned()
    inputs = torch.randn(2, 9, 4, 3), torch.rand(2, 9, 4), -torch.rand(4)
    inputs = *inputs, torch.randn(2, 9, 2, 5), torch.randn(2, 9, 2, 5)
    expected = module(*inputs, **named)
    assert patch_ssd_scan(module).sites
    torch.testing.assert_close(module(*inputs, **named), expected)


def test_a_convolution_is_called_by_the_name_of_its_argument():
    module, x = nn.ModuleList([nn.Conv1d(6, 6, 4, padding=3, groups=6)]), torch.randn(2, 6, 9)
    expected = module[0](x)
    assert patch_causal_conv1d(module).sites
    torch.testing.assert_close(module[0](input=x), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_attention_of_sequences_of_different_lengths_computes_as_before():
    parts = [torch.randn(length, 4, 8) for length in (5, 7, 3)]
    q = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    expected = functional.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(attend(q, q, q).values(), expected.values())


SCALE = 1.0  # which a function changes between calls


def set_scale(scale: float) -> None:
    global SCALE
    SCALE = scale


class Scheduled(nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, q, q, scale=SCALE)


class ScheduledNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return y if SCALE == 1 else SCALE * y


def test_a_norm_that_reads_a_variable_which_the_file_changes_is_left_alone():
    assert not patch_rms_norm(nn.ModuleList([ScheduledNorm()])).sites


def test_a_method_that_reads_a_variable_which_the_file_changes_is_left_alone():
    module, q = Scheduled(), torch.randn(1, 2, 5, 8)
    assert not patch_attention(module).sites
    before = module(q)
    set_scale(3.0)
    assert not torch.equal(module(q), before)
    set_scale(1.0)


def test_a_convolution_returns_the_dtype_of_autocast():
    module = nn.ModuleList([nn.Conv1d(6, 6, 4, padding=3, groups=6)])
    x = torch.randn(2, 6, 9)
    assert patch_causal_conv1d(module).sites
    with torch.autocast("cpu", torch.bfloat16):
        assert module[0](x).dtype == torch.bfloat16
    assert module[0](x).dtype == torch.float32


def test_eager_attention_of_transformers_is_left_alone():
    module = nn.Module()
    module._supports_attention_backend = True
    module.config = types.SimpleNamespace(_attn_implementation_internal="eager")
    assert not patch_attention(module).sites
    assert module.config._attn_implementation_internal == "eager"
