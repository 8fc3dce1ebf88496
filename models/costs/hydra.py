"""Costs of a HYDRA model's sizes; one layer first, then all of them with their fractions.

Shapes: E model width, H query heads, G key/value heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from models.configs.hydra import HydraConfig
from models.costs import hydra_memory
from models.costs.model_costs import (
    Costs,
    Routed,
    attention_parameters,
    attention_saved,
    outside_blocks,
)
from models.layers.basic import mlp_width
from models.layers.token_fraction import ALL_TOKENS, TokenFraction


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """One layer; the numbers are those of ``Costs``, for this layer alone."""

    parameters: int
    matmul: int
    matmul_of_shared: int  # those that a layer with another's keys does not compute
    scan: int
    score_width: int
    cached: int
    cached_per_sequence: int
    saved: int


def _layer(config: HydraConfig) -> _Layer:
    dim, hidden = config.dim, mlp_width(config.dim, config.mlp_ratio)
    q_dim, kv_dim = config.q_dim, config.kv_dim
    mlp, norms = 3 * dim * hidden, 2 * dim
    linears = attention_parameters(dim, q_dim, kv_dim) + mlp
    if not config.ccgqa:
        return _Layer(
            parameters=linears + norms,
            matmul=linears,
            matmul_of_shared=2 * dim * kv_dim,
            scan=0,
            score_width=q_dim,
            cached=2 * kv_dim,
            cached_per_sequence=0,
            # Also gate, up, their product.
            saved=attention_saved(dim, q_dim, kv_dim) + 3 * hidden,
        )
    mixed, width = q_dim + kv_dim, config.conv_width
    head_mixing = mixed * width * config.head_dim
    return _Layer(
        parameters=linears + norms + head_mixing + mixed * (width + 2) + config.n_kv_heads,
        matmul=linears + head_mixing,
        matmul_of_shared=dim * kv_dim,  # queries are mixed with the keys of their own token
        scan=mixed * width,
        score_width=q_dim,
        cached=2 * kv_dim,
        cached_per_sequence=mixed * 2 * (width - 1) + kv_dim // 2,
        # As above; before the convolutions, windows of the first one's output, before the norm,
        # keys before and after their temperature.
        saved=2 * dim + (width + 3) * mixed + q_dim + 2 * kv_dim + 3 * hidden,
    )


def costs(config: HydraConfig) -> Costs:
    """Return the costs of the sizes."""
    dim, rows = config.dim, config.rows
    layer, hidden = _layer(config), mlp_width(config.dim, config.mlp_ratio)
    depths = sum(config.routes_depth(i) for i in range(config.n_layers))
    plain = config.n_layers - depths
    parts = [_part(layer, config, ALL_TOKENS, plain, depths, False)]
    distinct, passes, states = config.n_layers, 1, depths
    by_block = hydra_memory.passes_of(config)
    block_weights = [1 / config.n_layers] * config.n_layers
    routers = depths * dim
    recursion_router = 0
    if config.mixture_of_recursions:
        n = passes = config.recursions
        shares = config.recursion_shares
        kv_shared = config.recursion_kv == "share"
        parts = [_part(layer, config, ALL_TOKENS, 2, 0, False)]
        parts += [
            _part(layer, config, s, plain, depths, kv_shared and s.numerator < s.denominator)
            for s in shares
        ]
        # Each recursion's router sees the tokens of the one before; the token's own, all at once.
        if config.recursion_routing == "expert":
            candidate_shares = [ALL_TOKENS, *shares[:-1]]
            parts += [
                [Routed(share=s, matmul_per_token=dim, score_width=0, cached_per_token=0)]
                for s in candidate_shares
            ]
        else:
            recursion_router = n * dim
        routers += n * dim
        distinct, states = config.n_layers + 2, n * (depths + 1)
        block_weights = [layers / distinct for layers in (1, config.n_layers, 1)]

    every = [part for group in parts for part in group]
    unrouted = [part for part in every if part.share == ALL_TOKENS]
    applied = passes * config.n_layers + distinct - config.n_layers
    return Costs(
        parameters=distinct * layer.parameters
        + routers
        + outside_blocks(dim, rows, config.tie_embeddings),
        n_layers=len(by_block),
        dim=dim,
        rows=rows,
        tied=config.tie_embeddings,
        matmul_per_token=sum(part.matmul_per_token for part in unrouted) + recursion_router,
        score_width=sum(part.score_width for part in unrouted),
        window=config.window,
        cached_per_token=sum(part.cached_per_token for part in unrouted),
        cached_per_sequence=applied * layer.cached_per_sequence,
        cached_fp32_per_sequence=2 * states,  # how many were taken, 8 bytes each
        scan_per_token=sum(part.scan_per_token for part in unrouted),
        saved_per_token=layer.saved,
        saved_stream_per_token=2 * dim,
        saved_fp32_per_token=config.n_heads + 2,  # log-sum-exp, and both norms' inverse deviations
        unfused_per_token=hidden,  # silu(gate)
        table_bytes=4 * config.max_sequence * config.head_dim,
        rotating=distinct,
        routed=tuple(part for part in every if part not in unrouted),
        block_passes=tuple(tuple(item.units for item in block) for block in by_block),
        block_weights=tuple(block_weights),
        attends=hydra_memory.attends(config),
        beside=partial(hydra_memory.beside, config),
        kept_beside=partial(hydra_memory.kept_beside, config),
        saved_past_attention=dim + 3 * hidden,
        backward_per_token=2 * hidden,  # gradients of gate and up; their product's is freed
        linear_parameters=distinct * layer.matmul,
        operator_outputs=partial(hydra_memory.operator_outputs, config),
        inference_per_token=partial(hydra_memory.inference_per_token, config),
    )


def _part(
    layer: _Layer,
    config: HydraConfig,
    share: TokenFraction,
    plain: int,
    depths: int,
    kv_shared: bool,
) -> list[Routed]:
    """Return layers that see the fraction ``share`` of the tokens; ``depths`` choose again."""
    skipped = layer.matmul_of_shared if kv_shared else 0
    parts = [
        Routed(
            share=share,
            matmul_per_token=plain * (layer.matmul - skipped) + depths * config.dim,
            score_width=plain * layer.score_width,
            cached_per_token=0 if kv_shared else plain * layer.cached,
            scan_per_token=plain * layer.scan,
            attends_all=kv_shared,
        )
    ]
    if depths:
        parts.append(
            Routed(
                share=share.times(config.capacity),
                matmul_per_token=depths * layer.matmul,
                score_width=depths * layer.score_width,
                cached_per_token=depths * layer.cached,
                scan_per_token=depths * layer.scan,
            )
        )
    return parts
