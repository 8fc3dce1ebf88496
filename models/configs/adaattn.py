"""Sizes of AdaAttn, the rules by which its heads adapt, and which of them fit together."""

from __future__ import annotations

from dataclasses import dataclass

from models.configs import fields
from models.configs.setting import setting
from models.errors import ConfigurationError
from models.layers.adaptive.rules import ESTIMATIONS, PRECISIONS, Rules, check_rules


@dataclass(frozen=True, kw_only=True)
class AdaAttnConfig(fields.RoundedVocabulary):
    """Sizes of one AdaAttn model, and the rules by which its heads adapt."""

    vocabulary: int = fields.vocabulary()
    vocabulary_multiple: int = fields.vocabulary_multiple()
    dim: int = fields.width(512)
    n_layers: int = fields.layers(6)
    n_heads: int = fields.heads(8, "Heads")
    rank_ratio: float = setting(
        0.5,
        "Minimum rank",
        "Fraction of a head's columns that are always kept.",
        minimum=0.01,
        maximum=1,
        weights=False,
    )
    rank_estimation: str = setting(
        "entropy",
        "Rank by",
        "Entropies of a head's weights and spectrum, or energy of its queries and keys.",
        choices=ESTIMATIONS,
    )
    rank_threshold: float = setting(
        0.95,
        "Rank threshold",
        "Normalised entropy above which all columns are kept, or fraction of energy to keep.",
        minimum=0.01,
        maximum=1,
    )
    adaptive_rank: bool = setting(True, "Adaptive rank", "Each head chooses its number of columns.")
    adaptive_precision: bool = setting(
        True, "Adaptive precision", "Each head chooses the number of bits of its queries and keys."
    )
    default_precision: str = setting(
        "inputs",
        "First precision",
        "Precision of query-key products at first, and always without adaptive precision.",
        choices=(*PRECISIONS,),
    )
    allow_fp8: bool = setting(
        False, "Allow FP8", "Heads with small scores may multiply queries and keys in FP8 E4M3."
    )
    refresh_every: int = setting(
        16,
        "Adapt every",
        "Number of calls from one analysis that counts to the next.",
        minimum=1,
        maximum=1_000_000,
    )
    qk_dimensions: int = setting(
        0,
        "Query/key dimensions",
        "Initial number of dimensions of queries and keys in three of four heads; 0: all of the "
        "head's. Adaptive rank computes such narrow heads with fewer columns.",
        minimum=0,
        maximum=65536,
    )
    mlp_ratio: float = fields.mlp_ratio()
    max_sequence: int = fields.max_sequence(8192)
    rope_theta: float = fields.rope_theta()
    norm_eps: float = fields.norm_eps()
    tie_embeddings: bool = fields.tie_embeddings(True)

    @property
    def rules(self) -> Rules:
        """Rules that decide ranks and precisions."""
        return Rules(
            rank_ratio=self.rank_ratio,
            rank_estimation=self.rank_estimation,
            rank_threshold=self.rank_threshold,
            adaptive_rank=self.adaptive_rank,
            adaptive_precision=self.adaptive_precision,
            default_precision=self.default_precision,
            allow_fp8=self.allow_fp8,
            refresh_every=self.refresh_every,
        )


def check(config: AdaAttnConfig) -> None:
    """Raise ``ConfigurationError`` for sizes that do not fit together."""
    if config.dim % config.n_heads:
        raise ConfigurationError(
            f"adaattn: dim = {config.dim} cannot be divided into n_heads = {config.n_heads} heads"
        )
    head_dim = config.dim // config.n_heads
    if head_dim % 2:
        raise ConfigurationError(
            f"adaattn: dim / n_heads = {head_dim} is odd, but rotary positions rotate pairs; "
            "choose an even head width"
        )
    if config.qk_dimensions % 2 or config.qk_dimensions > head_dim:
        raise ConfigurationError(
            f"adaattn: qk_dimensions = {config.qk_dimensions} is not an even number up to the head "
            f"width {head_dim}"
        )
    check_rules("adaattn", config.rules)
