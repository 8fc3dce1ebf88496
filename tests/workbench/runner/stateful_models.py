"""Users' models with state of every kind beside their weights, for tests of what calls leave."""

from __future__ import annotations

from pathlib import Path

from sessions.model import Configuration

_HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

TABLES = {}
"""
_TAIL = """
def build():
    return Stateful(), lambda batch: torch.randn(batch, 8, 16), lambda y, x: y.square().mean()
"""
_INIT = """
class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        {more}
"""
_BODIES = {
    "batch norm and a count": (
        "self.norm, self.calls = nn.BatchNorm1d(8), 0",
        "self.calls += 1; return self.norm(self.linear(x))",
    ),
    "dropout and attention": (
        "self.dropout = nn.Dropout(0.1)",
        "y = self.dropout(self.linear(x)); return F.scaled_dot_product_attention(y, y, y)",
    ),
    "a replaced buffer": (
        "self.register_buffer('mean', torch.ones(16))",
        "y = self.linear(x); self.mean = self.mean + y.detach().mean((0, 1)); return y * self.mean",
    ),
    "a buffer whose data is replaced": (
        "self.register_buffer('mean', torch.ones(16))",
        "self.mean.data = 0.9 * self.mean.data; return self.linear(x) * self.mean",
    ),
    "weights whose data is replaced": (
        "",
        "w = self.linear.weight; w.data = torch.renorm(w.data, 2, 0, 0.5); return self.linear(x)",
    ),
    "a tensor and a list as attributes": (
        "self.total, self.history = torch.zeros(()), []",
        "self.total = self.total + 1; self.history.append(1); return self.linear(x)",
    ),
    "weight norm": (
        "self.linear = parametrizations.weight_norm(self.linear)",
        "return self.linear(x)",
    ),
    "spectral norm": (
        "self.linear = parametrizations.spectral_norm(self.linear)",
        "return self.linear(x)",
    ),
    "the older spectral norm": (
        "self.linear = nn.utils.spectral_norm(self.linear)",
        "return self.linear(x)",
    ),
    "tied and repeated modules": (
        "self.head = nn.Linear(16, 16); self.head.weight = self.linear.weight\n"
        "        self.layers = nn.ModuleList([self.linear] * 2)",
        "return self.head(self.layers[1](self.layers[0](x)))",
    ),
    "a view of a weight": (
        "self.half = self.linear.weight[:8]",
        "return self.linear(x) + F.linear(x, self.linear.weight[:8]).repeat(1, 1, 2)",
    ),
    "hooks with state": (
        "self.seen = []; self.register_buffer('count', torch.zeros(()))\n"
        "        self.linear.register_forward_hook(lambda *_: self.seen.append(1))\n"
        "        self.linear.weight.register_hook(lambda g: self.count.add_(1) * 0 + g)",
        "return self.linear(x)",
    ),
    "a table of the first call": (
        "self.table = None",
        "self.table = torch.ones_like(x) if self.table is None else self.table\n"
        "        TABLES['calls'] = TABLES.get('calls', 0) + 1\n"
        "        return self.linear(x) * self.table[:len(x)]",
    ),
}
KINDS = tuple(_BODIES)


def stateful(folder: Path, kind: str, workload: str = "train", **toggles: str) -> Configuration:
    """Return the configuration of a model with this kind of state, whose file is written."""
    more, forward = _BODIES[kind]
    path = folder / "stateful.py"
    body = f"\n    def forward(self, x):\n        {forward}\n"
    path.write_text(_HEAD + _INIT.format(more=more or "pass") + body + _TAIL)
    return Configuration(
        family="own", preset="file", workload=workload, model={"source": str(path)},
        settings={"batch": 4, "sequence": 1}, toggles=toggles,
    )  # fmt: skip
