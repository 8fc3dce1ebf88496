"""Modules that look like what an operator computes agree after the patch, or were left alone."""

from __future__ import annotations

import torch
from foreign_models import assert_agree
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from workbench.runner.foreign.attention import patch_attention
from workbench.runner.foreign.experts import patch_experts
from workbench.runner.foreign.gated_mlp import patch_gated_mlp
from workbench.runner.foreign.mamba import patch_causal_conv1d
from workbench.runner.foreign.norms import patch_gated_rms_norm, patch_rms_norm
from workbench.runner.foreign.probe import InDouble
from workbench.runner.foreign.rotary import patch_rope

settings.register_profile("lookalikes", max_examples=25, deadline=None)
DIM = 12

NORMS = {
    "rms": lambda x, eps: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps),
    "divides": lambda x, eps: x / torch.sqrt(eps + torch.mean(x * x, dim=-1, keepdim=True)),
    "eps outside": lambda x, eps: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps),
    "at least eps": lambda x, eps: x * x.pow(2).mean(-1, keepdim=True).clamp_min(eps).rsqrt(),
    "sum": lambda x, eps: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps),
    "centred": lambda x, eps: functional.layer_norm(x, x.shape[-1:], eps=eps),
    "l1": lambda x, eps: x / (x.abs().mean(-1, keepdim=True) + eps),
    "unbiased": lambda x, eps: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / (DIM - 1) + eps),
    "whole batch": lambda x, eps: x * torch.rsqrt(x.pow(2).mean() + eps),
    "clipped": lambda x, eps: NORMS["rms"](x, eps).clamp(-1.5, 1.5),
    "detached": lambda x, eps: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps).detach(),
}
WEIGHTS = {
    "weight": lambda y, w: y * w,
    "one more": lambda y, w: y * (1 + w),
    "two more": lambda y, w: y * (2 + w),
    "squared": lambda y, w: y * w * w,
    "added": lambda y, w: y + w,
    "none": lambda y, w: y,
}
RIGHT_NORMS = {(n, w) for n in ("rms", "divides") for w in ("weight", "one more")}
ACTIVATIONS = {
    "silu": functional.silu,
    "sigmoid": lambda x: x * torch.sigmoid(x),
    "gelu": functional.gelu,
    "tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "clipped": lambda x: functional.silu(x.clamp(max=7.0)),
    "identity": lambda x: x,
}


class Norm(nn.Module):
    def __init__(self, norm: str, weighting: str, eps: float, is_wide: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, dtype=torch.float64))
        self.norm, self.weighting, self.eps, self.is_wide = norm, weighting, eps, is_wide

    def forward(self, x: Tensor) -> Tensor:
        y = NORMS[self.norm](x.float() if self.is_wide else x, self.eps)
        return WEIGHTS[self.weighting](y, self.weight).type_as(x)


class Gated(nn.Module):
    def __init__(self, gate_is_first: bool, norm_is_first: bool, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, dtype=torch.float64))
        self.eps, self.group_size = 1e-5, DIM // groups
        self.gate_is_first, self.norm_is_first = gate_is_first, norm_is_first

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x, z = (z, x) if self.gate_is_first else (x, z)
        y = x if self.norm_is_first else x * functional.silu(z)
        groups = y.unflatten(-1, (-1, self.group_size))
        groups = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.eps)
        y = groups.flatten(-2) * self.weight
        return y * functional.silu(z) if self.norm_is_first else y


class MLP(nn.Module):
    def __init__(self, activation: str, has_bias: bool, is_joined: bool, form: str) -> None:
        super().__init__()
        self.activation, self.form = activation, form
        outputs = 32 if is_joined else 16
        self.a = nn.Linear(DIM, outputs, has_bias, dtype=torch.float64)
        self.b = None if is_joined else nn.Linear(DIM, 16, has_bias, dtype=torch.float64)
        self.c = nn.Linear(16, DIM, has_bias, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.a(x).chunk(2, -1) if self.b is None else (self.a(x), self.b(x))
        act = ACTIVATIONS[self.activation]
        if self.form == "up first":
            first, second = second, first
        hidden = act(first) * (second + 1 if self.form == "offset" else second)
        y = self.c(hidden)
        return y + x if self.form == "residual" else 2 * y if self.form == "scaled" else y


def rotations(name: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def half(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    def neighbours(x: Tensor) -> Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    turn = neighbours if name == "neighbours" else half
    sign = -1 if name == "backwards" else 1
    rotated_q = q * cos + sign * turn(q) * sin
    rotated_k = k if name == "queries only" else k * cos + sign * turn(k) * sin
    return (2 * rotated_q if name == "scaled" else rotated_q), rotated_k


ROTATION = "half"  # what the function below computes


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotations(ROTATION, q, k, cos, sin)


class Rotated(nn.Module):
    """Queries and keys after the rotation; its table may be another than the operator expects."""

    def __init__(self, has_equal_columns: bool, is_interleaved: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        angles = torch.rand(5, 4, dtype=torch.float64)
        other = angles if has_equal_columns else angles + 1
        pairs = torch.stack((angles, other), -1)
        self.angles = pairs.flatten(-2) if is_interleaved else torch.cat((angles, other), -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k = apply_rotary(x * self.scale, x, self.angles.cos(), self.angles.sin())
        return torch.cat((q, k), 1)


class Experts(nn.Module):
    def __init__(self, activation: str, up_first: bool, transposed: bool, form: str) -> None:
        super().__init__()
        self.activation, self.form = activation, form
        self.up_first, self.transposed = up_first, transposed
        shapes = ((3, DIM, 16), (3, 8, DIM)) if transposed else ((3, 16, DIM), (3, DIM, 8))
        self.joined, self.down = (
            nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes
        )

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        joined, down = self.joined, self.down
        if self.transposed:
            joined, down = joined.transpose(1, 2), down.transpose(1, 2)
        inputs = x[:, None, None] * weight[..., None, None] if self.form == "before" else None
        joined_x = torch.einsum("td,efd->tef", x, joined)
        if inputs is not None:
            joined_x = torch.einsum("tkd,efd->tkef", inputs.squeeze(2), joined)
            joined_x = joined_x.gather(
                2, index[..., None, None].expand(-1, -1, 1, joined.shape[1])
            ).squeeze(2)
        else:
            joined_x = joined_x.gather(1, index[..., None].expand(-1, -1, joined.shape[1]))
        gate, up = joined_x.chunk(2, -1)
        gate, up = (up, gate) if self.up_first else (gate, up)
        hidden = ACTIVATIONS[self.activation](gate) * up
        out = torch.einsum("tkf,tkdf->tkd", hidden, down[index])
        return (out if self.form == "before" else out * weight[..., None]).sum(1)


class SDPA(nn.Module):
    def __init__(self, **arguments) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.arguments = arguments

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q * self.scale, k, v, **self.arguments)


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64) * scale


def outcome(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Return the output and all gradients."""
    given_inputs = [
        x.clone().requires_grad_() if x.is_floating_point() else x.clone() for x in inputs
    ]
    with InDouble():
        output = module(*given_inputs)
    wanted = [x for x in (*given_inputs, *module.parameters()) if x.requires_grad]
    factors = torch.linspace(0.3, 1.3, output.numel(), dtype=output.dtype).view_as(output)
    gradients = torch.autograd.grad((output * factors).sum(), wanted, allow_unused=True)
    return [output.detach(), *(g for g in gradients if g is not None)]


def agrees_or_is_left_alone(module: nn.Module, patch, *batches: tuple[Tensor, ...]) -> bool:
    """Compare the module before and after the patch; return True if it was replaced."""
    wrapped = nn.ModuleList([module])
    expected = [outcome(module, *batch) for batch in batches]
    state = torch.get_rng_state()
    made = patch(wrapped)
    assert torch.equal(state, torch.get_rng_state()), "a probe drew random numbers"
    for before, batch in zip(expected, batches, strict=True):
        assert_agree(before, outcome(module, *batch))
    replaced = bool(made.sites)
    made.undo()
    assert "forward" not in vars(module)
    return replaced


@settings(settings.get_profile("lookalikes"), max_examples=60)
@given(
    st.sampled_from(sorted(NORMS)),
    st.sampled_from(sorted(WEIGHTS)),
    st.sampled_from([1e-6, 1e-5, 1e-3, 1e-12]),
    st.booleans(),
)
def test_norms(norm, weighting, eps, is_wide):
    batches = [(draw(3, 4, DIM, scale=scale),) for scale in (1.0, eps**0.5, 1e3)]
    module = Norm(norm, weighting, eps, is_wide)
    replaced = agrees_or_is_left_alone(module, patch_rms_norm, *batches)
    assert replaced == ((norm, weighting) in RIGHT_NORMS)


@settings(settings.get_profile("lookalikes"))
@given(st.booleans(), st.booleans(), st.sampled_from([1, 2, 3]))
def test_gated_norms(gate_is_first, norm_is_first, groups):
    module = Gated(gate_is_first, norm_is_first, groups)
    batch = (draw(3, 4, DIM), draw(3, 4, DIM))
    replaced = agrees_or_is_left_alone(module, patch_gated_rms_norm, batch)
    assert replaced == (not gate_is_first and not norm_is_first)


@settings(settings.get_profile("lookalikes"), max_examples=40)
@given(
    st.sampled_from(sorted(ACTIVATIONS)),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["plain", "up first", "offset", "residual", "scaled"]),
)
def test_gated_layers(activation, has_bias, is_joined, form):
    right = {"swiglu": ("silu", "sigmoid"), "geglu": ("gelu", "tanh")}
    for operator, names in right.items():
        module = MLP(activation, has_bias, is_joined, form)
        replaced = agrees_or_is_left_alone(
            module,
            lambda model, op=operator: patch_gated_mlp(op, model),
            (draw(2, 3, DIM, scale=9),),
        )
        assert replaced == (activation in names and form in ("plain", "up first"))


@settings(settings.get_profile("lookalikes"))
@given(
    st.sampled_from(["half", "neighbours", "backwards", "queries only", "scaled"]),
    st.booleans(),
    st.booleans(),
)
def test_rotations(name, has_equal_columns, is_interleaved):
    global ROTATION
    ROTATION = name
    module = Rotated(has_equal_columns, is_interleaved)
    replaced = agrees_or_is_left_alone(module, patch_rope, (draw(2, 4, 5, 8),))
    assert replaced == (name in ("half", "neighbours"))


def test_a_call_that_the_operator_lacks_rotates_as_before():
    global ROTATION
    ROTATION = "half"
    module = Rotated(True, False)
    made = patch_rope(module)
    assert made.sites
    rotate = module.forward.__func__.__globals__["apply_rotary"]
    q, k = draw(2, 4, 5, 8), draw(2, 1, 5, 8)
    cos, sin = draw(2, 1, 5, 8), draw(2, 1, 5, 8)  # another table for each row of the batch
    for call in ((q, k, cos, sin), (q, k.float(), cos[0, 0], sin[0, 0]), (q[0], k[0], *cos[:, 0])):
        for x, y in zip(rotate(*call), apply_rotary(*call), strict=True):
            assert torch.equal(x, y)


@settings(settings.get_profile("lookalikes"))
@given(
    st.sampled_from(["silu", "gelu", "relu", "clipped"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["after", "before"]),
)
def test_experts(activation, up_first, transposed, form):
    module = Experts(activation, up_first, transposed, form)
    index = torch.stack([torch.randperm(3)[:2] for _ in range(7)])
    batch = (draw(7, DIM, scale=9), index, draw(7, 2).abs())
    replaced = agrees_or_is_left_alone(module, patch_experts, batch)
    assert replaced == (activation == "silu" and not up_first and form == "after")


@settings(settings.get_profile("lookalikes"))
@given(
    st.sampled_from([2, 3, 4, 5]), st.integers(0, 4), st.sampled_from([1, 2]), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_convolutions(width, padding, stride, is_depthwise, has_bias):
    groups = 6 if is_depthwise else 1
    module = nn.Conv1d(
        6, 6, width, stride, padding, groups=groups, bias=has_bias, dtype=torch.float64
    )
    replaced = agrees_or_is_left_alone(module, patch_causal_conv1d, (draw(2, 6, 9),))
    assert replaced == (is_depthwise and stride == 1 and padding == width - 1 and width <= 4)


@settings(settings.get_profile("lookalikes"))
@given(
    st.booleans(), st.sampled_from([None, 0.3]), st.booleans(), st.sampled_from([1, 2, 4]),
    st.sampled_from([5, 7]), st.booleans(),
)  # fmt: skip
def test_attention(is_causal, scale, has_mask, kv_heads, keys, takes_gqa):
    if kv_heads != 4 and not takes_gqa:
        return  # torch refuses it
    mask = torch.rand(5, keys) > 0.2 if has_mask and not is_causal else None
    if mask is not None:
        mask[:, 0] = True
    module = SDPA(is_causal=is_causal, scale=scale, attn_mask=mask, enable_gqa=takes_gqa)
    batch = (draw(2, 4, 5, 8), draw(2, kv_heads, keys, 8), draw(2, kv_heads, keys, 8))
    assert agrees_or_is_left_alone(module, patch_attention, batch)


class Counting(Norm):
    """Counts its calls, which a replacement would not."""

    def __init__(self) -> None:
        super().__init__("rms", "weight", 1e-6, False)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def test_a_module_that_counts_or_remembers_is_left_alone():
    module = Counting()
    assert not patch_rms_norm(nn.ModuleList([module])).sites
    assert module.calls == 0
    module = Norm("rms", "weight", 1e-6, False)
    module.history = []
    assert not patch_rms_norm(nn.ModuleList([module])).sites


def test_dropout_in_a_gated_layer_is_kept():
    class Dropped(MLP):
        def __init__(self) -> None:
            super().__init__("silu", False, False, "plain")
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.dropout(functional.silu(self.a(x)) * self.b(x)))

    module = nn.ModuleList([Dropped()])
    assert not patch_gated_mlp("swiglu", module).sites
