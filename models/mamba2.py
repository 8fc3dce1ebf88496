"""Mamba-2 hybrid: state-space blocks; every k-th also has attention, mixed by a learned gate.

A block adds one branch to the residual stream: ``x += branch(norm(x))``. In most blocks the branch
is Mamba-2's mixer (arXiv 2405.21060). In every ``attention_every``-th block, the mixer and grouped
causal attention with rotary positions read the same normalised input u. A gate for each token,

    branch(u) = g mixer(u) + (1 - g) attention(u),    g = sigmoid(gate . u + bias),

mixes them; it starts at 1/2 everywhere. Like the paper's models, this one has no feed-forward
layer. With ``attention_every = 0`` the model is attention-free: its decode state and its time per
token do not grow with the sequence.

Sizes. The document that names this family gives 47.3M, 96M and 2.8B parameters, but no layout. With
the document's widths and depths, 128 states, one group, a vocabulary of 32,768 and an untied head,
the attention-free form has 47.3M, 95.5M and 2.74B parameters. An attention and a gate in every
fourth block increase that to 48.6M, 99.9M and 3.00B. These are the presets, under the document's
names.
"""

# Shapes: B batch, S sequence, E model width.

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from models.configs.mamba2 import Mamba2Config, check
from models.costs.mamba2 import costs
from models.family import Family
from models.language_model import DECODING, BlockOutput, LanguageModel, step_operators
from models.layers.attention import Attention, KVState, RotaryCache
from models.layers.basic import INIT_STD, RMSNorm
from models.layers.ssm import SSM, SSMState
from models.model import Metric


@dataclass
class HybridState:
    """Decode state of a block that attends."""

    mixer: SSMState
    kv: KVState

    def tensors(self) -> list[Tensor]:
        """Return all tensors, for counting bytes and resetting."""
        return [*self.mixer.tensors(), *self.kv.tensors()]

    def carried(self) -> list[Tensor]:
        """Return the tensors that cannot go back to a position."""
        return self.mixer.carried()


class Gate(nn.Module):
    """Weight of the first of two branches for each token, (B, S, E) -> (B, S, 1), FP32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, dim))
        self.bias = nn.Parameter(torch.empty(1))

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Return the initial value of parameter ``name``: zeros, for equal weights."""
        return torch.zeros(shape)

    def forward(self, u_BSE: Tensor) -> Tensor:
        """Return the weights."""
        score_BS1 = functional.linear(u_BSE, self.weight, self.bias)
        return score_BS1.to(torch.promote_types(score_BS1.dtype, torch.float32)).sigmoid()


class Block(nn.Module):
    """Block ``x += mixer(norm(x))``; with attention ``x += g mixer(u) + (1 - g) attention(u)``."""

    by_token = True

    def __init__(self, config: Mamba2Config, rotary: RotaryCache | None) -> None:
        super().__init__()
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.mixer = SSM(config.mixer, config.norm_eps, config.n_layers)
        self.attention: Attention | None = None
        self.gate: Gate | None = None
        self.measures: dict[str, int] = {}
        if rotary is not None:
            std_out = INIT_STD / math.sqrt(config.n_layers)  # one addition per layer
            self.attention = Attention(
                config.dim, config.n_heads, config.n_kv_heads, rotary, std_out, config.window
            )
            self.gate = Gate(config.dim)
            self.measures = {"ssm_share": 1}

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> SSMState | HybridState:
        """Return the mixer's state, with keys and values if the block attends."""
        mixer = self.mixer.new_state(batch, device, dtype)
        if self.attention is None:
            return mixer
        return HybridState(mixer, self.attention.new_state(batch, length, device, dtype))

    @property
    def first_norm(self) -> RMSNorm:
        """Norm of the block's input."""
        return self.norm

    @property
    def can_fuse_step(self) -> bool:
        """True without attention: with it, several layers read the norm."""
        return self.attention is None

    def fused_step(
        self, x_BSE: Tensor, state: SSMState | HybridState | None, position: Tensor | None
    ) -> Tensor:
        """Return the result of ``forward`` for one more token, with fused linear layers."""
        assert isinstance(state, SSMState)
        return self.mixer(x_BSE, state, position, self.norm)

    def branches(
        self,
        u_BSE: Tensor,
        x_BSE: Tensor,
        state: SSMState | HybridState | None = None,
        position: Tensor | None = None,
    ) -> tuple[Tensor, BlockOutput]:
        """Return ``x_BSE`` and the block's addition to it, (B, S, E); ``u_BSE`` is its norm."""
        mixer, kv = (state.mixer, state.kv) if isinstance(state, HybridState) else (state, None)
        y_BSE = self.mixer(u_BSE, mixer, position)
        if self.attention is None or self.gate is None:
            return x_BSE, BlockOutput(y_BSE, None, {})
        attended_BSE = self.attention(u_BSE, kv, position)
        share_BS1 = self.gate(u_BSE)
        y_BSE = attended_BSE + share_BS1.to(y_BSE.dtype) * (y_BSE - attended_BSE)
        return x_BSE, BlockOutput(y_BSE, None, {"ssm_share": share_BS1.mean()})

    def forward(
        self,
        x_BSE: Tensor,
        state: SSMState | HybridState | None = None,
        position: Tensor | None = None,
    ) -> BlockOutput:
        """Compute (B, S, E) -> (B, S, E)."""
        # Not self.branches, which may be compiled: torch 2.11 would call that without self here.
        _, output = Block.branches(self, self.norm(x_BSE), x_BSE, state, position)
        return BlockOutput(x_BSE + output.x, None, output.measured)


def construct(config: Mamba2Config) -> LanguageModel:
    """Build the model's structure, on the current default device."""
    rotary = None
    if config.attending:
        rotary = RotaryCache(config.dim // config.n_heads, config.max_sequence, config.rope_theta)
    return LanguageModel(
        rows=config.rows,
        dim=config.dim,
        blocks=[
            Block(config, rotary if config.attends(index) else None)
            for index in range(config.n_layers)
        ],
        max_sequence=config.max_sequence,
        norm_eps=config.norm_eps,
        tie_embeddings=config.tie_embeddings,
    )


def operators(config: Mamba2Config, workload: str) -> frozenset[str]:
    """Return the operators that a step of the workload calls."""
    attention_free = not all(config.attends(index) for index in range(config.n_layers))
    names = {"rms_norm", "causal_conv1d", "gated_rms_norm"}
    names |= step_operators(
        workload, fuses_steps=attention_free, fuses_heads=bool(config.attending)
    )
    names.add("ssd_step" if workload in DECODING else "ssd_scan")
    if config.n_layers > 1:
        names.add("add_rms_norm")
    if config.attending:
        names |= {"attention", "rope"}
    return frozenset(names)


PRESETS = {
    "tiny": Mamba2Config(
        vocabulary=256,
        dim=128,
        n_layers=4,
        head_dim=32,
        d_state=32,
        attention_every=2,
        n_heads=4,
        n_kv_heads=2,
        max_sequence=512,
    ),
    "47M": Mamba2Config(dim=512, n_layers=8, max_sequence=8192),
    "96M": Mamba2Config(dim=768, n_layers=12, max_sequence=8192),
    "2.8B": Mamba2Config(dim=2560, n_layers=64, max_sequence=131_072),
}

SUGGESTIONS = {
    "tiny": {"cuda": (16, 256), "cpu": (2, 64)},
    "47M": {"cuda": (8, 1024), "cpu": (1, 64)},
    "96M": {"cuda": (8, 1024), "cpu": (1, 32)},
    "2.8B": {"cuda": (1, 2048), "cpu": (1, 16)},
}

FAMILY = Family(
    name="mamba2",
    title="Mamba-2 hybrid",
    help=__doc__,
    config=Mamba2Config,
    presets=PRESETS,
    suggestions=SUGGESTIONS,
    construct=construct,
    check=check,
    costs=costs,
    operators=operators,
    first_choice="96M",
    metrics=(
        Metric(
            name="ssm_share",
            title="Share of the state space",
            unit="",
            help="Fraction of a hybrid block that comes from the scan and not from attention: the "
            "mean gate of all tokens, initially 1/2; at 0 or 1 one of the two does nothing.",
            rows="hybrid block",
        ),
    ),
)
