"""Memory of a training step along its backward pass, where it has its peak.

The backward pass begins at the loss; then it goes through the blocks, from the last to the first.
The activations of a block make room for the gradients of its weights, evenly enough that only the
ends of a block count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernels.attention.memory import WeightsMemory
from models.costs.model_costs import Beside, BlockMemory, Costs, How
from models.costs.precision import PRECISIONS, Precision
from models.execution.checkpointing import CHECKPOINTING


def training_course(
    costs: Costs, size: Precision, how: How, checkpointing: str
) -> Iterator[tuple[int, int]]:
    """Yield bytes of activations and of gradients along the backward pass, from the loss on."""
    tokens = how.batch * how.sequence
    block, beside = unit_memory(costs, size, how), _beside(costs, how)
    unit = tokens * block.kept_per_token + block.saved + beside.saved
    # All that it saved still exists, and the gradient of its result.
    working = tokens * (block.backward_per_token + costs.dim * size.stream) + beside.backward
    stream = tokens * costs.dim * size.stream
    came = -(-stream // costs.stream_ranks)  # a checkpointed block saves its input
    passes, shares = costs.passes, costs.weights_by_block
    copies = [round(share * costs.linears_in_blocks * size.copied) for share in shares]
    again = _checkpointed(checkpointing, len(passes))
    more = [(0.0,) * len(sizes) for sizes in passes]
    if costs.kept_beside is not None:
        more = [tuple(tokens * extra for extra in passed) for passed in costs.kept_beside(how)]
    attends = attention_weights(costs, how)
    past = tokens * costs.saved_past_attention * size.compute
    saved_by_block = [
        came if recomputed else round(sum(sizes) * unit + sum(extra)) + copy + _kept(weights)
        for sizes, extra, copy, weights, recomputed in zip(
            passes, more, copies, attends, again, strict=True
        )
    ]
    fixed = how.batch * costs.saved_per_sequence * size.compute
    yield sum(saved_by_block) + fixed + costs.adapting_bytes, 0
    yield sum(saved_by_block) + fixed + costs.head * size.copied + _loss(costs, tokens), 0
    gradients = (costs.head + costs.linears_after) * size.weight
    for index in reversed(range(len(passes))):
        before, sizes = sum(saved_by_block[:index]), passes[index]
        if again[index]:
            before += came
        own = round(shares[index] * costs.linears_in_blocks * size.weight)
        for number in reversed(range(len(sizes))):
            saved = round(sum(sizes[: number + 1]) * unit + sum(more[index][: number + 1]))
            saved += copies[index] + _kept(attends[index][: number + 1])
            # For weights that several passes share, the last one's backward pass computes all
            # gradients.
            made = own if number + 1 < len(sizes) else 0
            part = min(1.0, sizes[number])
            yield before + saved + round(part * working), gradients + made
            # While attention runs, later activations do not exist yet, or no longer.
            for weights in attends[index][number] if attends[index] else ():
                there = before + saved - round(part * past) - weights.saved
                yield there + weights.forward, (gradients + made) * again[index]
                yield there + weights.backward + round(part * stream), gradients + made
        gradients += own
    yield 0, costs.parameters * size.weight


def cached_copies(costs: Costs, precision: str, checkpointing: str) -> tuple[int, int]:
    """Return the bytes of the copies of the blocks' linears in autocast's cache.

    The first number is for all blocks, the second for those that keep it for a backward pass.
    """
    size = PRECISIONS[precision]
    shares, total = costs.weights_by_block, costs.linears_in_blocks * size.copied
    again = _checkpointed(checkpointing, len(shares))
    once = costs.cast_by_operators * size.copied
    copies = [max(0, round(share * total) - once) for share in shares]
    saved = (copy for copy, recomputed in zip(copies, again, strict=True) if not recomputed)
    return sum(copies), sum(saved)


def attention_weights(costs: Costs, how: How) -> list[list[list[WeightsMemory]]]:
    """Return, by block and pass, what its attentions hold for their weights."""
    if not costs.attends:
        return [[] for _ in costs.passes]
    masked = costs.causal or costs.window > 0
    return [
        [[attention.weights(how, masked) for attention in passed] for passed in block]
        for block in costs.attends
    ]


def unit_memory(costs: Costs, size: Precision, how: How) -> BlockMemory:
    """Return the memory of a unit block, with the stream's part; see the families' ``costs``."""
    stream = costs.saved_stream_per_token * size.stream
    if not how.fused and costs.by_torch is not None:
        block = costs.by_torch(how)
        return replace(block, kept_per_token=block.kept_per_token + stream)
    compute, fp32 = costs.saved_per_token, costs.saved_fp32_per_token
    if how.by_operators:
        compute, fp32 = compute + costs.unfused_per_token, fp32 + costs.unfused_fp32_per_token
    return BlockMemory(
        kept_per_token=compute * size.compute + stream + fp32 * 4,
        backward_per_token=costs.backward_per_token * size.compute,
    )


def _kept(passes: Sequence[Sequence[WeightsMemory]]) -> int:
    return sum(weights.saved for passed in passes for weights in passed)


def _beside(costs: Costs, how: How) -> Beside:
    return costs.beside(how) if costs.beside else Beside()


def _loss(costs: Costs, tokens: int) -> int:
    """Return the bytes of the log-softmax in FP32, and of the gradients after and before it."""
    return 3 * 4 * tokens * costs.rows


def _checkpointed(mode: str, count: int) -> list[bool]:
    """Return which blocks save only their input; see ``Model.choose_checkpointed``."""
    # "operators" saves most of a block: estimated as all of it.
    stride = 0 if mode == "operators" else CHECKPOINTING[mode]
    return [stride > 0 and index % stride == 0 for index in range(count)]
