"""Sizes of HYDRA, and which of them fit together."""

from __future__ import annotations

from dataclasses import dataclass

from models.configs import fields
from models.configs.setting import setting
from models.errors import ConfigurationError
from models.layers.recursion import KEYS_AND_VALUES, ROUTINGS
from models.layers.token_fraction import TokenFraction


@dataclass(frozen=True, kw_only=True)
class HydraConfig(fields.RoundedVocabulary):
    """Sizes of one HYDRA model."""

    vocabulary: int = fields.vocabulary()
    vocabulary_multiple: int = fields.vocabulary_multiple()
    dim: int = fields.width(768)
    n_layers: int = fields.layers(12)
    n_heads: int = fields.heads(12)
    n_kv_heads: int = fields.kv_heads(4)
    mlp_ratio: float = fields.mlp_ratio()
    max_sequence: int = fields.max_sequence()
    rope_theta: float = fields.rope_theta()
    norm_eps: float = fields.norm_eps()
    tie_embeddings: bool = fields.tie_embeddings(True)

    window: int = fields.window()
    ccgqa: bool = setting(
        False,
        "Compressed attention",
        "Attention in a narrow latent with short convolutions (CCGQA), not plain grouped queries.",
    )
    query_compression: int = setting(
        2,
        "Query compression C1",
        "CCGQA: the width of the queries' latent is the model width divided by this.",
        minimum=1,
        maximum=64,
    )
    kv_compression: int = setting(
        0,
        "Key/value compression C2",
        "CCGQA: model width over width of the keys' latent; 0: computed from C1 and the heads.",
        minimum=0,
        maximum=4096,
    )
    conv_width: int = setting(
        2,
        "Convolution width",
        "CCGQA: number of tokens that each convolution sees.",
        choices=(2, 3, 4),
    )
    mixture_of_depths: bool = setting(
        False, "Mixture of depths", "Some blocks compute only the tokens that a router chooses."
    )
    depth_capacity: float = setting(
        0.125,
        "Depth capacity",
        "Mixture of depths: fraction of the tokens that a routed block computes.",
        minimum=0.001,
        maximum=1,
    )
    depth_every: int = setting(
        2,
        "Route every n-th block",
        "Mixture of depths: 2 routes the second, fourth, ... block; 1 routes all.",
        minimum=1,
        maximum=1024,
    )
    mixture_of_recursions: bool = setting(
        False,
        "Mixture of recursions",
        "The layers form one stack that is applied several times, between two more layers.",
    )
    recursions: int = setting(
        4,
        "Recursions",
        "Mixture of recursions: the maximum number of passes of a token through the stack.",
        minimum=2,
        maximum=16,
    )
    recursion_routing: str = setting(
        "expert",
        "Recursion routing",
        "Each recursion chooses its tokens (expert), or each token its recursions (token).",
        choices=ROUTINGS,
    )
    recursion_kv: str = setting(
        "recursion",
        "Recursion keys and values",
        "Each recursion keeps its own keys and values, or all share those of the first.",
        choices=KEYS_AND_VALUES,
    )
    recursion_alpha: float = setting(
        0.1,
        "Recursion gate",
        "Expert choice: the maximum weight of a recursion's result.",
        minimum=0.001,
        maximum=10,
    )
    router_loss: float = setting(
        0.01,
        "Router loss",
        "Weight of the loss that trains routers to choose without later tokens, or evenly.",
        minimum=0,
        maximum=10,
    )

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // (self.n_heads * (self.query_compression if self.ccgqa else 1))

    @property
    def q_dim(self) -> int:
        """Columns of all queries of a token."""
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Columns of all keys of a token, and of all values."""
        return self.n_kv_heads * self.head_dim

    @property
    def recursion_shares(self) -> list[TokenFraction]:
        """Fraction of the tokens that enters each recursion."""
        return [TokenFraction(self.recursions - r, self.recursions) for r in range(self.recursions)]

    @property
    def capacity(self) -> TokenFraction:
        """Fraction of the tokens that a block with mixture of depths computes."""
        return TokenFraction.nearest(self.depth_capacity)

    def routes_depth(self, index: int) -> bool:
        """Return True if the layer of that index, from 0, has mixture of depths."""
        return self.mixture_of_depths and (index + 1) % self.depth_every == 0

    @property
    def computes_all_tokens(self) -> bool:
        """True if any block outside of a recursion computes all tokens."""
        return self.mixture_of_recursions or not all(map(self.routes_depth, range(self.n_layers)))

    @property
    def applied_layers(self) -> int:
        """Maximum number of layers that compute a token."""
        return self.recursions * self.n_layers + 2 if self.mixture_of_recursions else self.n_layers


def check(config: HydraConfig) -> None:
    """Raise ``ConfigurationError`` for sizes that do not fit together."""
    if config.dim % config.n_heads and not config.ccgqa:
        raise ConfigurationError(
            f"hydra: dim = {config.dim} cannot be divided into n_heads = {config.n_heads} heads"
        )
    if config.n_heads % config.n_kv_heads:
        raise ConfigurationError(
            f"hydra: n_heads = {config.n_heads} is not a multiple of n_kv_heads = "
            f"{config.n_kv_heads}, so the query heads cannot share them evenly"
        )
    if config.ccgqa:
        _check_ccgqa(config)
    if config.head_dim % 2:
        by = " / query_compression" if config.ccgqa else ""
        raise ConfigurationError(
            f"hydra: dim / n_heads{by} = {config.head_dim} is odd, but rotary positions rotate "
            "pairs; choose an even head width"
        )
    if config.mixture_of_depths and config.depth_every > config.n_layers:
        raise ConfigurationError(
            f"hydra: depth_every = {config.depth_every} is more than n_layers = "
            f"{config.n_layers}, so mixture_of_depths would route no block"
        )
    shares = config.mixture_of_recursions and config.recursion_kv == "share"
    if shares and config.mixture_of_depths:
        raise ConfigurationError(
            "hydra: recursion_kv = 'share' needs the first recursion's keys of every token, which "
            "mixture_of_depths does not compute; choose recursion_kv = 'recursion', or switch "
            "mixture_of_depths off"
        )


def _check_ccgqa(config: HydraConfig) -> None:
    divisor = config.n_heads * config.query_compression
    if config.dim % divisor:
        raise ConfigurationError(
            f"hydra: dim = {config.dim} cannot be divided by n_heads = {config.n_heads} times "
            f"query_compression = {config.query_compression}; ccgqa needs a multiple of {divisor}"
        )
    if config.n_kv_heads % 2:
        raise ConfigurationError(
            f"hydra: ccgqa delays half of the value heads by a token, so n_kv_heads = "
            f"{config.n_kv_heads} must be even"
        )
    follows = divisor // config.n_kv_heads
    if config.kv_compression not in (0, follows):
        raise ConfigurationError(
            f"hydra: kv_compression = {config.kv_compression}, but n_kv_heads = "
            f"{config.n_kv_heads}, n_heads = {config.n_heads} and query_compression = "
            f"{config.query_compression} require {follows}; set it to {follows} or 0"
        )
