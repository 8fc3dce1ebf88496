"""Mamba-2 hybrid: state-space blocks, every k-th of which also attends, mixed by a learned gate.

A block adds one branch to the residual stream: ``x += branch(norm(x))``. In most blocks the branch
is Mamba-2's mixer (arXiv 2405.21060). In every ``attention_every``-th block, the mixer and grouped
causal attention with rotary positions read the same normalised input u. A gate for each token,

    branch(u) = g mixer(u) + (1 - g) attention(u),    g = sigmoid(gate . u + bias),

decides between them; it starts at 1/2 everywhere. There is no feed-forward layer, as in the paper's
models. With ``attention_every = 0`` the model is attention-free: its decode state and its time per
token do not grow with the sequence.

Sizes. The document that names this family gives 47.3M, 96M and 2.8B parameters without the layout.
Attention-free, with its widths and depths, 128 states, one group, a vocabulary of 32,768 and an
untied head, this layout has 47.3M, 95.5M and 2.74B. An attention and a gate besides the mixer of
every fourth block increase that to 48.6M, 99.9M and 3.00B. These are the presets, under the
document's names.
"""

# Shapes: B batch, S sequence, E model width.

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from models import config_fields
from models.costs.mamba2 import costs
from models.errors import ConfigurationError
from models.family import Family, setting
from models.language_model import BlockOutput, LanguageModel, loss_operators
from models.layers.attention import Attention, KVState, RotaryCache
from models.layers.basic import INIT_STD, RMSNorm
from models.layers.ssm import SSM, SSMSizes, SSMState
from models.model import Metric


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(config_fields.RoundedVocabulary):
    """Sizes of one Mamba-2 hybrid."""

    vocabulary: int = config_fields.vocabulary(32768)
    vocabulary_multiple: int = config_fields.vocabulary_multiple()
    dim: int = config_fields.width(768)
    n_layers: int = config_fields.layers(12)
    expand: int = setting(
        2, "Expansion", "Inner width of the mixer over model width.", minimum=1, maximum=16
    )
    head_dim: int = setting(
        64, "Head width", "Of the mixer; must divide its inner width.", minimum=1, maximum=1024
    )
    d_state: int = setting(
        128, "States", "What each channel of the mixer remembers in.", minimum=1, maximum=1024
    )
    n_groups: int = setting(
        1,
        "Groups",
        "Sets of input and output maps of the states; must divide the mixer's heads.",
        minimum=1,
        maximum=1024,
    )
    d_conv: int = setting(4, "Convolution", "Tokens that it spans.", choices=(2, 3, 4))
    attention_every: int = setting(
        4,
        "Attention every",
        "Every so many blocks one also attends; 0: none does.",
        minimum=0,
        maximum=1024,
    )
    n_heads: int = setting(
        32, "Query heads", "Of the attention; must divide the width.", minimum=1, maximum=1024
    )
    n_kv_heads: int = config_fields.kv_heads(8)
    window: int = config_fields.window()
    max_sequence: int = config_fields.max_sequence()
    rope_theta: float = config_fields.rope_theta()
    norm_eps: float = config_fields.norm_eps(1e-5)
    tie_embeddings: bool = config_fields.tie_embeddings(False)

    @property
    def mixer(self) -> SSMSizes:
        """Widths of a mixer."""
        return SSMSizes(
            dim=self.dim,
            inner=self.expand * self.dim,
            head_dim=self.head_dim,
            n_groups=self.n_groups,
            d_state=self.d_state,
            d_conv=self.d_conv,
        )

    @property
    def attending(self) -> int:
        """Number of blocks that attend."""
        return self.n_layers // self.attention_every if self.attention_every else 0

    def attends(self, index: int) -> bool:
        """Return True if block ``index`` (from 0) attends."""
        return bool(self.attention_every) and (index + 1) % self.attention_every == 0


@dataclass
class HybridState:
    """Decode state of a block that attends."""

    mixer: SSMState
    kv: KVState

    def tensors(self) -> list[Tensor]:
        """Return all tensors, for counting bytes and resetting."""
        return [*self.mixer.tensors(), *self.kv.tensors()]

    def carried(self) -> list[Tensor]:
        """Return what cannot go back to a position."""
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

    def branch(
        self,
        u_BSE: Tensor,
        state: SSMState | HybridState | None = None,
        position: Tensor | None = None,
    ) -> Tensor | BlockOutput:
        """Return what is added to the stream, given the normed stream: (B, S, E) -> (B, S, E)."""
        mixer, kv = (state.mixer, state.kv) if isinstance(state, HybridState) else (state, None)
        y_BSE = self.mixer(u_BSE, mixer, position)
        if self.attention is None or self.gate is None:
            return y_BSE
        attended_BSE = self.attention(u_BSE, kv, position)
        share_BS1 = self.gate(u_BSE)
        y_BSE = attended_BSE + share_BS1.to(y_BSE.dtype) * (y_BSE - attended_BSE)
        return BlockOutput(y_BSE, None, {"ssm_share": share_BS1.mean()})

    def forward(
        self,
        x_BSE: Tensor,
        state: SSMState | HybridState | None = None,
        position: Tensor | None = None,
    ) -> Tensor | BlockOutput:
        """Compute (B, S, E) -> (B, S, E)."""
        output = self.branch(self.norm(x_BSE), state, position)
        if isinstance(output, BlockOutput):
            return output._replace(x=x_BSE + output.x)
        return x_BSE + output


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


def check(config: Mamba2Config) -> None:
    """Raise ``ConfigurationError`` for sizes that do not fit together."""
    size = config.mixer
    if size.inner % size.head_dim:
        raise ConfigurationError(
            f"mamba2: the mixer's inner width expand * dim = {size.inner} does not divide into "
            f"heads of head_dim = {size.head_dim}"
        )
    if size.n_heads % size.n_groups:
        raise ConfigurationError(
            f"mamba2: the mixer's expand * dim / head_dim = {size.n_heads} heads do not divide "
            f"into n_groups = {size.n_groups} groups"
        )
    if not config.attention_every:
        return
    if config.attention_every > config.n_layers:
        raise ConfigurationError(
            f"mamba2: attention_every = {config.attention_every} is more than n_layers = "
            f"{config.n_layers}, so no block would attend; 0 asks for that"
        )
    if config.dim % config.n_heads:
        raise ConfigurationError(
            f"mamba2: dim = {config.dim} does not divide into n_heads = {config.n_heads} heads"
        )
    if config.n_heads % config.n_kv_heads:
        raise ConfigurationError(
            f"mamba2: n_heads = {config.n_heads} is not a multiple of n_kv_heads = "
            f"{config.n_kv_heads}, so the query heads cannot share them evenly"
        )
    if config.dim // config.n_heads % 2:
        raise ConfigurationError(
            f"mamba2: dim / n_heads = {config.dim // config.n_heads} is odd, but rotary positions "
            "turn pairs; choose an even head width"
        )


def operators(config: Mamba2Config, workload: str) -> frozenset[str]:
    """Return the operators that a step of the workload calls."""
    names = {"rms_norm", "causal_conv1d", "gated_rms_norm", *loss_operators(workload)}
    names.add("ssd_step" if workload in ("decode", "generate") else "ssd_scan")
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
            help="How much of a block that both scans and attends comes from the scan: its gate's "
            "mean over tokens, 1/2 at the start; at 0 or 1 one of the two does nothing.",
            rows="hybrid block",
        ),
    ),
)
