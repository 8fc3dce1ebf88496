"""A language model of one's own in plain PyTorch, with a part for every bundled operator.

It uses nothing of the workbench: the toggles of *Your model* recognize its norms, gated layers,
rotation, attention, experts, convolution, scan and loss.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LENGTH = 97, 32, 4, 16
HEAD = WIDTH // HEADS


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(
            x
        ) * self.weight


class GatedNorm(nn.Module):
    """RMSNorm of x * silu(gate)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Gate, then normalise."""
        wide = x.float() * functional.silu(gate.float())
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Compute it."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


def rotate_half(x: Tensor) -> Tensor:
    """Return (-b, a) for (a, b)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by the tables."""
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        angles = torch.outer(torch.arange(LENGTH), 10.0 ** -torch.arange(0, 4, 8 / HEAD))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the sequence."""
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, HEAD)).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary(q, k, self.cos, self.sin)
        y = functional.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class Experts(nn.Module):
    """SwiGLU experts with stacked weights."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(count, 2 * WIDTH, WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(count, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        """Add up the experts that each token chose."""
        gate, up = torch.einsum("td,efd->etf", x, self.gate_up).chunk(2, dim=-1)
        out = torch.einsum("etf,edf->etd", functional.silu(gate) * up, self.down)
        chosen = functional.one_hot(index, len(self.down)).to(x.dtype) * weight[..., None]
        return torch.einsum("tke,etd->td", chosen, out)


class Mixture(nn.Module):
    """Two of the experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = Experts()

    def forward(self, x: Tensor) -> Tensor:
        """Route each token."""
        tokens = x.flatten(0, -2)
        weight, index = self.router(tokens).softmax(-1).topk(2)
        return self.experts(tokens, index, weight.to(x.dtype)).view_as(x)


def mamba2_chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
) -> Tensor:
    """Scan step by step."""
    dt = dt if dt_bias is None else dt + dt_bias
    dt = functional.softplus(dt) if dt_softplus else dt
    per_group = x.shape[2] // B.shape[2]
    B, C = (matrix.repeat_interleave(per_group, dim=2) for matrix in (B, C))
    state = x.new_zeros(len(x), *x.shape[2:], B.shape[3])
    outputs = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * A)[..., None, None]
        added = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        state = state * decay + added
        outputs.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(outputs, dim=1)
    return (y if D is None else y + x * D[:, None]).to(x.dtype)


class Mamba(nn.Module):
    """A short convolution, a scan and a gated norm."""

    def __init__(self, states: int = 8) -> None:
        super().__init__()
        self.states, channels = states, WIDTH + 2 * states
        self.into = nn.Linear(WIDTH, WIDTH + channels + HEADS, bias=False)
        self.convolution = nn.Conv1d(channels, channels, 4, groups=channels, padding=3)
        self.A_log, self.D, self.dt_bias = (nn.Parameter(torch.zeros(HEADS)) for _ in range(3))
        self.norm = GatedNorm(WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the sequence."""
        sizes = (WIDTH, WIDTH + 2 * self.states, HEADS)
        gate, mixed, dt = self.into(x).split(sizes, dim=-1)
        mixed = functional.silu(
            self.convolution(mixed.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        )
        y, B, C = mixed.split((WIDTH, self.states, self.states), dim=-1)
        y = mamba2_chunk_scan(
            y.unflatten(-1, (HEADS, HEAD)),
            dt,
            -self.A_log.exp(),
            B[:, :, None],
            C[:, :, None],
            chunk_size=8,
            D=self.D,
            dt_bias=self.dt_bias,
            dt_softplus=True,
        )
        return self.out(self.norm(y.flatten(-2), gate))


class Model(nn.Module):
    """Every part once, with residual connections, and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        parts = (Attention(), GatedMLP(nn.SiLU()), GatedMLP(nn.GELU()), Mixture(), Mamba())
        self.parts = nn.ModuleList(parts)
        self.norms = nn.ModuleList(RMSNorm(WIDTH) for _ in parts)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        x = self.embedding(tokens)
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        return self.head(x)


def make_inputs(batch: int) -> Tensor:
    """Random tokens."""
    return torch.randint(VOCABULARY, (batch, LENGTH))


def loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of the next token."""
    return functional.cross_entropy(
        logits[:, :-1].reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1)
    )


def build():
    """Return the model, its inputs and its loss."""
    return Model(), make_inputs, loss
