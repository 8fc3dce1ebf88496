"""Sizes of MAHIA-X, and which of them fit together."""

from __future__ import annotations

from dataclasses import dataclass

from models.configs import fields
from models.configs.setting import setting
from models.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class MahiaConfig:
    """Sizes of one MAHIA-X model."""

    vocab_size: int = setting(
        10_000, "Vocabulary", "Number of different tokens.", minimum=2, maximum=1_048_576
    )
    text_seq_len: int = setting(
        128, "Longest text", "Maximum number of tokens of a text.", minimum=1, maximum=1_048_576
    )
    tab_dim: int = setting(
        50, "Tabular features", "Number of tabular values for each text.", minimum=1, maximum=65536
    )
    output_dim: int = setting(
        2, "Outputs", "Number of classes, or of numbers to predict.", minimum=1, maximum=65536
    )
    embed_dim: int = setting(
        128, "Text width", "Width of the text tower.", minimum=2, maximum=65536
    )
    tab_hidden_dim: int = setting(
        128, "Tabular width", "Width of the tabular tower.", minimum=1, maximum=65536
    )
    fused_dim: int = setting(
        128, "Fused width", "Width of the graph memory and the fabric.", minimum=1, maximum=65536
    )
    use_moe: bool = setting(
        False, "Experts", "The text blocks' feed-forward layers are mixtures of experts."
    )
    task: str = setting(
        "classification",
        "Task",
        "Predict classes with cross-entropy, or numbers with squared error.",
        choices=("classification", "regression"),
    )
    n_layers: int = setting(4, "Text layers", "Blocks of the text tower.", minimum=1, maximum=1024)
    n_heads: int = setting(
        4, "Heads", "Number of heads; must divide the text width.", minimum=1, maximum=1024
    )
    mlp_ratio: float = setting(
        2.67,
        "MLP ratio",
        "Feed-forward width over model width, in text blocks, experts and fabric.",
        minimum=0.25,
        maximum=16,
    )
    use_fourier: bool = setting(
        True, "Fourier mixing", "Each head mixes attention with a Fourier filter of its values."
    )
    causal: bool = setting(
        False, "Causal text", "A token sees only itself and earlier tokens, as in a language model."
    )
    memory_size: int = setting(
        64, "Memory slots", "No fused kernel supports more than 128.", minimum=1, maximum=65536
    )
    memory_top_k: int = setting(
        0, "Neighbours of a slot", "Edges kept per slot; 0 keeps all.", minimum=0, maximum=65536
    )
    diffusion_steps: int = setting(
        3,
        "Diffusion steps",
        "Number of diffusion steps on the memory's graph.",
        minimum=1,
        maximum=64,
        weights=False,
    )
    diffusion_alpha: float = setting(
        0.85, "Diffusion", "Fraction that comes from a slot's neighbours.", minimum=0, maximum=1
    )
    max_layers: int = setting(
        8, "Fabric layers", "Maximum number of fabric layers of a sample.", minimum=1, maximum=1024
    )
    capacity: float = setting(
        0.5,
        "Fabric capacity",
        "Fraction of the batch that each fabric layer computes.",
        minimum=0.001,
        maximum=1,
        weights=False,
    )
    n_experts: int = setting(
        8, "Number of experts", "Experts of each block.", minimum=1, maximum=512
    )
    expert_top_k: int = setting(
        2, "Experts per token", "Number of experts that compute a token.", minimum=1, maximum=512
    )
    rope_theta: float = fields.rope_theta()
    norm_eps: float = fields.norm_eps()


def check(config: MahiaConfig) -> None:
    """Raise ``ConfigurationError`` for sizes that do not fit together."""
    if config.embed_dim % config.n_heads:
        raise ConfigurationError(
            f"mahia: embed_dim = {config.embed_dim} cannot be divided into n_heads = "
            f"{config.n_heads} heads"
        )
    if (head_dim := config.embed_dim // config.n_heads) % 2:
        raise ConfigurationError(
            f"mahia: embed_dim / n_heads = {head_dim} is odd, but rotary positions rotate pairs; "
            "choose an even head width"
        )
    if config.memory_top_k > config.memory_size:
        raise ConfigurationError(
            f"mahia: memory_top_k = {config.memory_top_k} exceeds memory_size = "
            f"{config.memory_size}; 0 keeps every edge"
        )
    if config.expert_top_k > config.n_experts:
        raise ConfigurationError(
            f"mahia: expert_top_k = {config.expert_top_k} exceeds n_experts = {config.n_experts}"
        )
    if config.task == "classification" and config.output_dim < 2:
        raise ConfigurationError(
            f"mahia: classification needs an output_dim of at least 2, not {config.output_dim}"
        )
