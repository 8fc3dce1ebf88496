"""Memory of a HYDRA model's layers in a step, and of routing besides them.

A unit is one layer over all tokens; a layer that sees a fraction of them is that fraction of a
unit. Shapes: E model width, D head width, M columns of queries and keys, C a layer's fraction of
the tokens.
"""

from __future__ import annotations

from typing import NamedTuple

from models.configs.hydra import HydraConfig
from models.costs.model_costs import Attends, Beside, How, dense_block
from models.layers.basic import mlp_width
from models.layers.token_fraction import ALL_TOKENS, TokenFraction


class Pass(NamedTuple):
    """One pass through a block: how many tokens each layer of a stack sees."""

    share: TokenFraction  # fraction of all tokens that enters
    layers: tuple[TokenFraction, ...]  # fraction of all tokens that each layer computes

    @property
    def units(self) -> float:
        """Number of units."""
        return sum(map(_size, self.layers))


def passes_of(config: HydraConfig) -> tuple[tuple[Pass, ...], ...]:
    """Return the passes of each block."""
    capacity, layers = config.capacity, range(config.n_layers)

    def through(share: TokenFraction) -> tuple[TokenFraction, ...]:
        return tuple(share.times(capacity) if config.routes_depth(i) else share for i in layers)

    alone = (Pass(ALL_TOKENS, (ALL_TOKENS,)),)
    if not config.mixture_of_recursions:
        return tuple((Pass(ALL_TOKENS, (share,)),) for share in through(ALL_TOKENS))
    return alone, tuple(Pass(s, through(s)) for s in config.recursion_shares), alone


def attends(config: HydraConfig) -> tuple[tuple[tuple[Attends, ...], ...], ...]:
    """Return the attentions of its layers, by block and pass."""
    heads = config.n_heads, config.n_kv_heads, config.head_dim
    shared = config.mixture_of_recursions and config.recursion_kv == "share"

    def attention(share: TokenFraction) -> Attends:
        if shared and _size(share) < 1:
            return Attends(*heads, share, ALL_TOKENS, True)
        return Attends(*heads, share, share)

    return tuple(
        tuple(tuple(attention(share) for share in item.layers) for item in block)
        for block in passes_of(config)
    )


def beside(config: HydraConfig, step: How) -> Beside:
    """Return the memory of a unit with compressed attention that depends on the precision."""
    if not config.ccgqa:
        return Beside()
    tokens, saved = step.batch * step.sequence, 0
    if step.autocast:  # queries and keys, and values, each have a copy of the input cast for them
        saved += config.dim * step.element
    if step.by_operators:
        # The inputs of the first convolution and of the norms, in FP32; each head's deviation.
        heads = (config.n_heads + config.n_kv_heads) // step.shards
        saved += 4 * heads + 2 * (4 - step.element) * heads * config.head_dim
    return Beside(tokens * saved)


def kept_beside(config: HydraConfig, step: How) -> tuple[tuple[float, ...], ...]:
    """Return bytes per token that each pass saves besides its units, for routing, by block."""
    blocks = passes_of(config)
    by_block = [tuple(_layers(config, step, item) for item in block) for block in blocks]
    if not config.mixture_of_recursions:
        return tuple(by_block)
    before, stack, after = by_block
    passes = blocks[1]
    # the tokens that the router chooses from
    candidate_shares = [item.share for item in (passes[0], *passes[:-1])]
    routing = (
        _recursion(config, step, number, _size(candidates), _size(item.share))
        for number, (candidates, item) in enumerate(zip(candidate_shares, passes, strict=True))
    )
    return before, tuple(map(sum, zip(stack, routing, strict=True))), after


def operator_outputs(config: HydraConfig, step: How) -> tuple[float, ...]:
    """Return bytes per token, by block, of the outputs of products and attention."""
    q_dim, kv_dim, hidden = config.q_dim, config.kv_dim, mlp_width(config.dim, config.mlp_ratio)
    # Queries, keys and values, those mixed in compressed attention; the attention's output.
    attention = q_dim + 2 * kv_dim + (q_dim + kv_dim if config.ccgqa else 0) + q_dim
    numbers = (attention + 2 * hidden) // step.shards + 2 * config.dim
    layer = numbers * step.element + 4 * config.n_heads // step.shards
    return tuple(sum(item.units for item in block) * layer for block in passes_of(config))


def inference_per_token(config: HydraConfig, step: How) -> int:
    """Return the peak bytes per token of a block where no backward pass follows."""
    stream, tokens = config.dim * step.stream, step.batch * step.sequence
    largest = 0.0
    for block, attending in zip(passes_of(config), attends(config), strict=True):
        for number, item in enumerate(block):
            # A recursion's input, and from the second on the sum so far and the tokens that it
            # chose from.
            recursion_bytes = 0.0
            if len(block) > 1:
                recursion_bytes = stream * (
                    1 if number == 0 else 2 + _size(block[number - 1].share)
                )
            if len(block) > 1 and config.recursion_kv == "share":
                # The other layers' keys and values, which every recursion reads.
                recursion_bytes += (len(item.layers) - 1) * 2 * config.kv_dim * step.element
            for share, attention in zip(item.layers, attending[number], strict=True):
                size = _size(share)
                weights = attention.weights(step, True).inference / tokens
                needed = (
                    size * _dense(config, step._replace(weights=round(weights / size)))
                    + recursion_bytes
                )
                if size < _size(item.share):  # the tokens it was chosen from
                    needed += _size(item.share) * stream
                largest = max(largest, needed)
    return round(largest)


def _dense(config: HydraConfig, step: How) -> int:
    """Return bytes per token of a running layer."""
    q_dim, kv_dim = config.q_dim, config.kv_dim
    projected, mixed = q_dim + 2 * kv_dim, 0
    if config.ccgqa:
        mixed = (config.conv_width + 3) * (q_dim + kv_dim) - projected + kv_dim
    return dense_block(
        step,
        dim=config.dim,
        projected=projected + q_dim,
        rotating=3 * q_dim,
        attending=2 * projected + q_dim + mixed,
        hidden=mlp_width(config.dim, config.mlp_ratio),
    )


def _layers(config: HydraConfig, step: How, item: Pass) -> float:
    """Return bytes for positions in layers that see some tokens, and for a mixture of depths.

    The latter has the router's input, in FP32; the change, which PyTorch weighs in FP32, and the
    tokens from which PyTorch gathers; the scores, indices and slots.
    """
    saved, candidates = 0.0, _size(item.share)
    by_torch = step.by_operators
    for share in item.layers:
        size = _size(share)
        if size < 1:
            saved += 4 * config.head_dim * size  # cosines and sines
        if size < candidates:
            saved += candidates * 4 * config.dim + size * config.dim * (
                4 if by_torch else step.element
            )
            if by_torch and step.stream < 4:
                saved += candidates * config.dim * step.stream
            saved += 18 * candidates
    return saved


def _recursion(
    config: HydraConfig, step: How, number: int, candidates: float, size: float
) -> float:
    """Return bytes for a recursion that chooses ``size`` of the tokens among ``candidates``.

    As for a mixture of depths; but its result is weighted twice, once for the sum of all.
    """
    dim, wide = config.dim, 4 * config.dim
    by_torch = step.by_operators
    narrow = step.stream < 4
    if config.recursion_routing == "token":
        chosen_from = (
            candidates * dim * step.stream if number else wide + dim * step.stream * narrow
        )
        return chosen_from + size * (dim * step.stream + wide * (by_torch and narrow))
    router = candidates * wide
    if number and by_torch and narrow:
        router += candidates * dim * step.stream
    result = size * wide
    if number and narrow:
        result += size * (wide if by_torch else dim * step.stream)
    return router + result + 18 * candidates


def _size(share: TokenFraction) -> float:
    return share.numerator / share.denominator
