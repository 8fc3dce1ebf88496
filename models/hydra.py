"""HYDRA: a pre-norm transformer of grouped-query attention and SwiGLU blocks.

The plain form of the family: rotary positions, 32 query heads over 4 key/value heads and a
feed-forward ratio of 2.67 at its published size. Its three routings (compressed convolutional
attention, mixture of depths, mixture of recursions) replace the attention of a block, wrap a block,
and repeat a block.
"""

# Shapes: B batch, S sequence, E model width.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models._attention import Attention, KVState, RotaryCache
from models._costs import Costs
from models._family import Family, setting
from models._language_model import LanguageModel
from models._layers import RMSNorm, SwiGLUMLP, mlp_width, residual_std
from models._mistake import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class HydraConfig:
    """The sizes of one HYDRA model."""

    vocabulary: int = setting(
        50257,
        "Vocabulary",
        "Number of different tokens; at least 256, so that the bytes of a file are tokens.",
        minimum=256,
        maximum=1_048_576,
    )
    vocabulary_multiple: int = setting(
        64,
        "Round vocabulary up to",
        "Unused rows fill the embedding up to this multiple: tensor cores are slow on 50257.",
        choices=(1, 8, 64, 128),
    )
    dim: int = setting(768, "Width", "Width of the residual stream.", minimum=8, maximum=65536)
    n_layers: int = setting(12, "Layers", "Number of blocks.", minimum=1, maximum=1024)
    n_heads: int = setting(12, "Query heads", "Must divide the width.", minimum=1, maximum=1024)
    n_kv_heads: int = setting(
        4,
        "Key/value heads",
        "Must divide the query heads; fewer means a smaller decode cache.",
        minimum=1,
        maximum=1024,
    )
    mlp_ratio: float = setting(
        2.67,
        "MLP ratio",
        "Feed-forward width over model width, rounded to a multiple of 128 (of 8 below 1024).",
        minimum=0.25,
        maximum=16,
    )
    max_sequence: int = setting(
        2048,
        "Longest sequence",
        "Positions in the rotary tables; no step may be longer.",
        minimum=1,
        maximum=1_048_576,
    )
    rope_theta: float = setting(
        10_000.0, "RoPE base", "Base of the rotary frequencies.", minimum=1, maximum=1e9
    )
    norm_eps: float = setting(
        1e-6, "Norm epsilon", "Added to the mean square in RMSNorm.", minimum=1e-12, maximum=0.1
    )
    tie_embeddings: bool = setting(
        True, "Tie embeddings", "The head uses the embedding's weights instead of its own."
    )

    @property
    def rows(self) -> int:
        """Rows of the embedding: the vocabulary, rounded up."""
        return -(-self.vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple


class Block(nn.Module):
    """``x += attention(norm(x)); x += mlp(norm(x))``."""

    def __init__(self, config: HydraConfig, rotary: RotaryCache) -> None:
        super().__init__()
        std_out = residual_std(config.n_layers)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config.dim, config.n_heads, config.n_kv_heads, rotary, std_out)
        self.mlp_norm = RMSNorm(config.dim, config.norm_eps)
        self.mlp = SwiGLUMLP(config.dim, mlp_width(config.dim, config.mlp_ratio), std_out)

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> KVState:
        """The attention's keys and values."""
        return self.attention.new_state(batch, length, device, dtype)

    def forward(
        self, x_BSE: Tensor, state: KVState | None = None, position: Tensor | None = None
    ) -> Tensor:
        """(B, S, E) -> (B, S, E)."""
        x_BSE = x_BSE + self.attention(self.attention_norm(x_BSE), state, position)
        return x_BSE + self.mlp(self.mlp_norm(x_BSE))


def construct(config: HydraConfig) -> LanguageModel:
    """The model's structure, on the current default device."""
    rotary = RotaryCache(config.dim // config.n_heads, config.max_sequence, config.rope_theta)
    return LanguageModel(
        rows=config.rows,
        dim=config.dim,
        blocks=[Block(config, rotary) for _ in range(config.n_layers)],
        max_sequence=config.max_sequence,
        norm_eps=config.norm_eps,
        tie_embeddings=config.tie_embeddings,
    )


def check(config: HydraConfig) -> None:
    """Raise ``ConfigurationError`` for sizes that do not go together."""
    if config.dim % config.n_heads:
        raise ConfigurationError(
            f"hydra: dim = {config.dim} does not divide into n_heads = {config.n_heads} heads"
        )
    if config.n_heads % config.n_kv_heads:
        raise ConfigurationError(
            f"hydra: n_heads = {config.n_heads} is not a multiple of n_kv_heads = "
            f"{config.n_kv_heads}, so the query heads cannot share them evenly"
        )
    head_dim = config.dim // config.n_heads
    if head_dim % 2:
        raise ConfigurationError(
            f"hydra: dim / n_heads = {head_dim} is odd, but rotary positions turn pairs; "
            "choose an even head width"
        )


def costs(config: HydraConfig) -> Costs:
    """What the sizes cost."""
    dim, layers, rows = config.dim, config.n_layers, config.rows
    kv_dim = config.n_kv_heads * (dim // config.n_heads)
    hidden = mlp_width(dim, config.mlp_ratio)
    linears = dim * (dim + 2 * kv_dim) + dim * dim + 3 * dim * hidden
    tables = 1 if config.tie_embeddings else 2
    return Costs(
        parameters=layers * (linears + 2 * dim) + dim + tables * rows * dim,
        n_layers=layers,
        dim=dim,
        rows=rows,
        matmul_per_token=layers * linears,
        score_width=layers * dim,
        cached_per_token=layers * 2 * kv_dim,
        # Both norms' outputs, rotated q, k, v, the attention's output; gate, up, their product.
        saved_per_token=2 * dim + (dim + 2 * kv_dim) + dim + 3 * hidden,
        saved_stream_per_token=2 * dim,
        saved_fp32_per_token=config.n_heads + 2,  # log-sum-exp, and both norms' inverse deviations
        unfused_per_token=hidden,  # silu(gate)
        tables_bytes=4 * config.max_sequence * (dim // config.n_heads),
    )


PRESETS = {
    "tiny": HydraConfig(
        vocabulary=256, dim=128, n_layers=4, n_heads=4, n_kv_heads=2, max_sequence=512
    ),
    "small": HydraConfig(dim=384, n_layers=6, n_heads=6, n_kv_heads=2),
    "base": HydraConfig(dim=768, n_layers=12, n_heads=12, n_kv_heads=4),
    "medium": HydraConfig(dim=1024, n_layers=24, n_heads=16, n_kv_heads=4, max_sequence=4096),
    "large": HydraConfig(dim=2048, n_layers=24, n_heads=32, n_kv_heads=4, max_sequence=8192),
}

SUGGESTIONS = {
    "tiny": {"cuda": (16, 256), "cpu": (2, 64)},
    "small": {"cuda": (8, 512), "cpu": (1, 64)},
    "base": {"cuda": (8, 1024), "cpu": (1, 32)},
    "medium": {"cuda": (4, 1024), "cpu": (1, 32)},
    "large": {"cuda": (2, 2048), "cpu": (1, 16)},
}

FAMILY = Family(
    name="hydra",
    title="HYDRA",
    help=__doc__,
    config=HydraConfig,
    presets=PRESETS,
    suggestions=SUGGESTIONS,
    construct=construct,
    check=check,
    costs=costs,
)
