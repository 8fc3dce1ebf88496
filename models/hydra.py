"""HYDRA: a pre-norm transformer of grouped-query attention and SwiGLU blocks, with three options.

The options are independent. *Compressed convolutional attention* (arXiv 2510.04476) computes the
attention of every block in a narrow latent. *Mixture of depths* (arXiv 2404.02258) lets every
second block compute only a fraction of the tokens. *Mixture of recursions* (arXiv 2507.10524)
applies one stack of blocks several times, each time to fewer tokens, between a separate first and
last block. With all three off it is a plain transformer.

Training routes the tokens with the highest scores of a sequence, and so depends on later tokens.
Evaluation, prefill and decoding route causally, by each token's own score within a running budget,
and agree with each other. A decode step has a fixed shape, so it computes every block for its
token. There, routing saves the memory of keys and values, and the time to read them.
"""

# Shapes: B batch, S sequence, E model width.

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.configs.hydra import HydraConfig, check
from models.costs.hydra import costs
from models.decode_state import State
from models.family import Family
from models.language_model import LanguageModel, step_operators
from models.layers.attention import Attention, RotaryCache, SharedKV
from models.layers.basic import RMSNorm, SwiGLUMLP, TransformerBlock, mlp_width, residual_std
from models.layers.ccgqa import CCGQA
from models.layers.depth import MixtureOfDepths
from models.layers.recursion import MixtureOfRecursions
from models.layers.routing import Rows
from models.layers.token_fraction import ALL_TOKENS, TokenFraction
from models.model import Metric


class Block(TransformerBlock):
    """Block ``x += attention(norm(x)); x += mlp(norm(x))``."""

    by_token = True

    def __init__(self, config: HydraConfig, rotary: RotaryCache) -> None:
        super().__init__()
        std_out = residual_std(config.applied_layers)
        heads = (config.dim, config.n_heads, config.n_kv_heads)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention: nn.Module
        if config.ccgqa:
            sizes = (*heads, config.head_dim, config.conv_width)
            self.attention = CCGQA(*sizes, rotary, config.norm_eps, std_out, config.window)
        else:
            self.attention = Attention(*heads, rotary, std_out, config.window)
        self.mlp_norm = RMSNorm(config.dim, config.norm_eps)
        self.mlp = SwiGLUMLP(config.dim, mlp_width(config.dim, config.mlp_ratio), std_out)

    def new_state(
        self,
        batch: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
        share: TokenFraction = ALL_TOKENS,
    ) -> State:
        """Return the attention's state for the fraction ``share`` of ``length`` positions."""
        state: State = self.attention.new_state(batch, share.slots(length), device, dtype)  # type: ignore[operator]
        return state

    def change(
        self, x_BSE: Tensor, state: State | None, position: Tensor | None, rows: Rows | None
    ) -> Tensor:
        """Return the addition of ``forward`` to the tokens, (B, S, E)."""
        attended_BSE = self.attention(self.attention_norm(x_BSE), state, position, rows)
        return attended_BSE + self.mlp(self.mlp_norm(x_BSE + attended_BSE))

    def fused_step(self, x_BSE: Tensor, state: State | None, position: Tensor | None) -> Tensor:
        """Return the result of ``forward`` for one more token, with fused linear layers."""
        return self.mlp.fused_step(
            self.attention.fused_step(x_BSE, self.attention_norm, state, position), self.mlp_norm
        )

    def branches(
        self,
        u_BSE: Tensor,
        x_BSE: Tensor,
        state: State | None = None,
        position: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens after attention, and the MLP's addition; ``u_BSE`` is their norm."""
        return self.after_attention(self.attention(u_BSE, state, position), x_BSE)

    def forward(
        self,
        x_BSE: Tensor,
        state: State | None = None,
        position: Tensor | None = None,
        rows: Rows | None = None,
        shared: SharedKV | None = None,
    ) -> Tensor:
        """Compute (B, S, E) -> (B, S, E); ``rows`` and ``shared`` are the attention's."""
        x_BSE = x_BSE + self.attention(self.attention_norm(x_BSE), state, position, rows, shared)
        return x_BSE + self.mlp(self.mlp_norm(x_BSE))


def construct(config: HydraConfig) -> LanguageModel:
    """Build the model's structure, on the current default device."""
    rotary = RotaryCache(config.head_dim, config.max_sequence, config.rope_theta)

    def layer(index: int) -> nn.Module:
        block = Block(config, rotary)
        if not config.routes_depth(index):
            return block
        return MixtureOfDepths(block, config.dim, config.capacity, config.router_loss)

    blocks = [layer(index) for index in range(config.n_layers)]
    if config.mixture_of_recursions:
        routing = (config.recursions, config.recursion_routing, config.recursion_kv)
        weights = (config.recursion_alpha, config.router_loss)
        recursion = MixtureOfRecursions(blocks, config.dim, *routing, *weights)
        blocks = [Block(config, rotary), recursion, Block(config, rotary)]
    return LanguageModel(
        rows=config.rows,
        dim=config.dim,
        blocks=blocks,
        max_sequence=config.max_sequence,
        norm_eps=config.norm_eps,
        tie_embeddings=config.tie_embeddings,
    )


def operators(config: HydraConfig, workload: str) -> frozenset[str]:
    """Return the operators that a step of the workload calls."""
    fuses = config.computes_all_tokens and not config.ccgqa
    names = {"rms_norm", "swiglu", "attention"}
    names |= step_operators(workload, fuses_steps=fuses, fuses_gates=True, fuses_heads=fuses)
    names |= {"qk_norm_rope", "causal_conv1d"} if config.ccgqa else {"rope"}
    if config.computes_all_tokens:
        names.add("add_rms_norm")
    if config.mixture_of_depths or config.mixture_of_recursions:
        names.add("token_scatter")
        by_token = config.mixture_of_recursions and config.recursion_routing == "token"
        if workload == "train" and (config.mixture_of_depths or not by_token):
            names.add("token_router")  # evaluation routes by each token's own score
    return frozenset(names)


PRESETS = {
    "tiny": HydraConfig(
        vocabulary=256, dim=128, n_layers=4, n_heads=4, n_kv_heads=2, max_sequence=512
    ),
    "small": HydraConfig(dim=384, n_layers=6, n_heads=6, n_kv_heads=2),
    "base": HydraConfig(dim=768, n_layers=12, n_heads=12, n_kv_heads=4),
    "medium": HydraConfig(dim=1024, n_layers=24, n_heads=16, n_kv_heads=4, max_sequence=4096),
    "published": HydraConfig(
        dim=2048,
        n_layers=8,
        n_heads=32,
        n_kv_heads=4,
        max_sequence=4096,
        ccgqa=True,
        mixture_of_depths=True,
        depth_capacity=0.5,
        mixture_of_recursions=True,
        recursions=4,
    ),
    "large": HydraConfig(dim=2048, n_layers=24, n_heads=32, n_kv_heads=4, max_sequence=8192),
}

SUGGESTIONS = {
    "tiny": {"cuda": (16, 256), "cpu": (2, 64)},
    "small": {"cuda": (8, 512), "cpu": (1, 64)},
    "base": {"cuda": (8, 1024), "cpu": (1, 32)},
    "medium": {"cuda": (4, 1024), "cpu": (1, 32)},
    "published": {"cuda": (4, 1024), "cpu": (1, 16)},
    "large": {"cuda": (2, 2048), "cpu": (1, 16)},
}

METRICS = (
    Metric(
        name="depth_share",
        title="Tokens computed by depth routing",
        unit="",
        help="Fraction of all tokens that a block with mixture of depths computed, by layer of a "
        "recursion's stack (mean of the recursions); close to the capacity in evaluation.",
        columns="layer",
    ),
    Metric(
        name="depth_router",
        title="Depth router",
        unit="",
        help="Mean sigmoid of the scores of all recursions; close to the capacity after training "
        "of the router.",
        columns="layer",
    ),
    Metric(
        name="recursion_share",
        title="Recursions taken",
        unit="",
        help="Fraction of all tokens that left after exactly this many recursions; even by design.",
        columns="recursions",
    ),
    Metric(
        name="recursion_router",
        title="Recursion router",
        unit="",
        help="Mean gate of each recursion: of the tokens that it could choose, before alpha "
        "(expert), or of all tokens (token); 0 if it could choose none.",
        columns="recursion",
    ),
)

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
    operators=operators,
    metrics=METRICS,
)
