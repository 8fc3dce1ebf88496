"""What the layers of a HYDRA model hold of a step, and what routing holds beside them.

A unit is one layer over all tokens; a layer that sees a share of them is that share of a unit.
Shapes: E model width, D head width, M columns of queries and keys, C a layer's share of the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from models._costs import Attends, Beside, How, dense_block
from models._layers import mlp_width
from models._share import ALL, Share

if TYPE_CHECKING:
    from models.hydra import HydraConfig


class Pass(NamedTuple):
    """One pass through a block: of a stack's layers, how many tokens each sees."""

    share: Share  # of all tokens, that come in
    layers: tuple[Share, ...]  # of all tokens, that each layer computes

    @property
    def units(self) -> float:
        """How many units it is."""
        return sum(part / whole for part, whole in self.layers)


def passes_of(config: HydraConfig) -> tuple[tuple[Pass, ...], ...]:
    """By block, its passes."""
    capacity, layers = config.capacity, range(config.n_layers)

    def through(share: Share) -> tuple[Share, ...]:
        return tuple(share.times(capacity) if config.routes_depth(i) else share for i in layers)

    alone = (Pass(ALL, (ALL,)),)
    if not config.mixture_of_recursions:
        return tuple((Pass(ALL, (share,)),) for share in through(ALL))
    n = config.recursions
    shares = [Share(n - r, n) for r in range(n)]
    return alone, tuple(Pass(share, through(share)) for share in shares), alone


def attends(config: HydraConfig) -> tuple[tuple[tuple[Attends, ...], ...], ...]:
    """By block and pass, its layers' attentions."""
    heads = config.n_heads, config.n_kv_heads, config.head_dim
    shared = config.mixture_of_recursions and config.recursion_kv == "share"

    def one(share: Share) -> Attends:
        if shared and _size(share) < 1:
            return Attends(*heads, share, ALL, True)
        return Attends(*heads, share, share)

    return tuple(
        tuple(tuple(one(share) for share in each.layers) for each in block)
        for block in passes_of(config)
    )


def beside(config: HydraConfig, how: How) -> Beside:
    """What a unit with compressed attention holds beside what it holds in every precision."""
    if not config.ccgqa:
        return Beside()
    tokens, kept = how.batch * how.sequence, 0
    if how.autocast:  # queries and keys, and values, each have a copy of the input cast for them
        kept += config.dim * how.element
    if not how.fused and not how.compiled:
        # The inputs of the first convolution and of the norms, in FP32; each head's deviation.
        heads = config.n_heads + config.n_kv_heads
        kept += 4 * heads + 2 * (4 - how.element) * heads * config.head_dim
    return Beside(tokens * kept)


def kept_beside(config: HydraConfig, how: How) -> tuple[tuple[float, ...], ...]:
    """By block, bytes a token that each pass keeps beside its units, for the routing."""
    blocks = passes_of(config)
    found = [tuple(_layers(config, how, each) for each in block) for block in blocks]
    if not config.mixture_of_recursions:
        return tuple(found)
    before, stack, after = found
    passes = blocks[1]
    seen = [each.share for each in (passes[0], *passes[:-1])]  # what the router chooses from
    routing = (
        _recursion(config, how, number, _size(came), _size(each.share))
        for number, (came, each) in enumerate(zip(seen, passes, strict=True))
    )
    return before, tuple(map(sum, zip(stack, routing, strict=True))), after


def inference_per_token(config: HydraConfig, how: How) -> int:
    """Bytes a token that a block holds at most where no backward pass follows."""
    stream, tokens = config.dim * how.stream, how.batch * how.sequence
    largest = 0.0
    for block, attending in zip(passes_of(config), attends(config), strict=True):
        for number, each in enumerate(block):
            # A recursion's input, and from the second on the sum so far and what it chose from.
            around = 0.0
            if len(block) > 1:
                around = stream * (1 if number == 0 else 2 + _size(block[number - 1].share))
            if len(block) > 1 and config.recursion_kv == "share":
                # The other layers' keys and values, which every recursion looks at.
                kv = 2 * config.n_kv_heads * config.head_dim
                around += (len(each.layers) - 1) * kv * how.element
            for share, one in zip(each.layers, attending[number], strict=True):
                size = _size(share)
                weights = one.weights(how, True).inference / tokens
                held = size * _dense(config, how._replace(weights=round(weights / size))) + around
                if size < _size(each.share):  # what it was chosen from
                    held += _size(each.share) * stream
                largest = max(largest, held)
    return round(largest)


def _dense(config: HydraConfig, how: How) -> int:
    """A layer at work, bytes a token that it computes."""
    q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    projected, mixed = q_dim + 2 * kv_dim, 0
    if config.ccgqa:
        mixed = (config.conv_width + 3) * (q_dim + kv_dim) - projected + kv_dim
    return dense_block(
        how,
        dim=config.dim,
        projected=projected + q_dim,
        rotating=3 * q_dim,
        attending=2 * projected + q_dim + mixed,
        hidden=mlp_width(config.dim, config.mlp_ratio),
    )


def _layers(config: HydraConfig, how: How, each: Pass) -> float:
    """For the positions of layers that see some tokens, and for the choice of a mixture of depths.

    The router's input, in FP32; the change that was made, which PyTorch weighs in FP32, and where
    PyTorch gathers, what from; the scores, places and slots.
    """
    kept, came = 0.0, _size(each.share)
    by_torch = not how.fused and not how.compiled
    for share in each.layers:
        size = _size(share)
        if size < 1:
            kept += 4 * config.head_dim * size  # cosines and sines
        if size < came:
            kept += came * 4 * config.dim + size * config.dim * (4 if by_torch else how.element)
            if by_torch and how.stream < 4:
                kept += came * config.dim * how.stream
            kept += 18 * came
    return kept


def _recursion(config: HydraConfig, how: How, number: int, came: float, size: float) -> float:
    """For a recursion's choice among ``came`` of the tokens, and what becomes of its ``size``.

    As of a mixture of depths; but its result is weighed twice, once for the sum of all.
    """
    dim, wide = config.dim, 4 * config.dim
    by_torch = not how.fused and not how.compiled
    narrow = how.stream < 4
    if config.recursion_routing == "token":
        chosen_from = came * dim * how.stream if number else wide + dim * how.stream * narrow
        return chosen_from + size * (dim * how.stream + wide * (by_torch and narrow))
    router = came * wide
    if number and by_torch and narrow:
        router += came * dim * how.stream
    result = size * wide
    if number and narrow:
        result += size * (wide if by_torch else dim * how.stream)
    return router + result + 18 * came


def _size(share: Share) -> float:
    return share.part / share.whole
