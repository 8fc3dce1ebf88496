"""Own models, one for each kind of fault that was found by running what people write.

Each function is a ``build()``: ``workbench run --model own_models.py:NAME ...``.
"""

import copy

import torch
from torch import nn
from torch.nn import functional


def _batch(size):
    return torch.randn(size, 8) * 2 + 1


def _loss(output, *inputs):
    return (output - 1).square().mean()


class _Alibi(nn.Module):
    def __init__(self, length=1024, dim=16):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.register_buffer("position", torch.arange(length).float(), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        distance = (self.position[:, None] - self.position[None, :]).abs()
        return (q @ k.transpose(1, 2) - distance).softmax(-1) @ v


def position_buffer():
    """Positions in a float buffer, which BF16 rounds: 51 % off in truth."""
    return _Alibi(), lambda size: torch.randn(size, 1024, 16), lambda y, x: y.square().mean()


class _ActNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.initialized = False

    def forward(self, x):
        if not self.initialized:
            with torch.no_grad():
                self.loc.copy_(-x.mean(0))
                self.log_scale.copy_(-(x.std(0) + 1e-6).log())
            self.initialized = True
        return (x + self.loc) * self.log_scale.exp()


def data_dependent_init():
    """Return a model in which the first batch decides parameters."""
    return nn.Sequential(nn.Linear(8, 8), _ActNorm(8), nn.Tanh(), nn.Linear(8, 8)), _batch, _loss


class _Target(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Linear(8, 8)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            pairs = zip(self.online.parameters(), self.target.parameters(), strict=True)
            for online, target in pairs:
                target.lerp_(online, 0.01)
            y = self.target(x)
        return self.online(x), y


def target_network():
    """Return a target network that every forward pass moves."""
    return _Target(), _batch, lambda o, x: (o[0] - o[1] - 1).square().mean()


class _RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.mean = nn.Linear(8, 8), None

    def forward(self, x):
        batch_mean = x.mean(0).detach()
        self.mean = batch_mean if self.mean is None else 0.9 * self.mean + 0.1 * batch_mean
        return self.linear(x - self.mean)


def state_in_an_attribute():
    """State in a plain attribute that one batch, given twice, does not show."""
    return _RunningMean(), _batch, _loss


class _SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)


def nothing_to_quantize():
    """``quantization=int8_dynamic`` has nothing to act on here."""
    return (
        _SelfAttention(),
        lambda size: torch.randn(size, 6, 16),
        lambda o, x: o[0].square().mean(),
    )


class _Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, adjacency, x):
        return torch.sparse.mm(adjacency, self.linear(x))


def sparse_input():
    """Return a graph network with a sparse adjacency matrix as input."""
    return (
        _Graph(),
        lambda size: (torch.eye(size).to_sparse(), torch.randn(size, 8)),
        lambda y, *inputs: y.square().mean(),
    )


class _Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def dynamic_padding():
    """Batches of different lengths."""

    def batch(size):
        length = int(torch.randint(4, 20, (1,)))
        return torch.randint(50, (size, length))

    return (
        _Language(),
        batch,
        lambda y, tokens: functional.cross_entropy(
            y[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        ),
    )


class _Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.mix, self.head = nn.Linear(32, 32), nn.Linear(32, 50)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        return self.head(torch.tanh(self.mix(x)))


def position_table():
    """Learned positions: nothing odd, for faults to be planted in."""

    def loss(y, tokens):
        return functional.cross_entropy(y[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return _Positions(), lambda size: torch.randint(50, (size, 24)), loss
