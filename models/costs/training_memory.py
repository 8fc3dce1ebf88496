"""Memory of a training step along its backward pass, where it has its peak.

The backward pass begins at the loss and then computes the blocks from the last to the first.
The activations of a block make room for the gradients of its weights, evenly enough that only the
ends of a block count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernels.attention.memory import WeightsMemory
from models.costs.model_costs import Beside, BlockMemory, Costs, How
from models.costs.precision import PRECISIONS, Precision
from models.execution.checkpointing import CHECKPOINTING


def training_course(
    costs: Costs, size: Precision, step: How, checkpointing: str
) -> Iterator[tuple[int, int]]:
    """Yield bytes of activations and of gradients along the backward pass, from the loss on."""
    tokens = step.batch * step.sequence
    blocks = _blocks(costs, size, step, checkpointing)
    saved = [block.saved for block in blocks]
    at_the_end = sum(saved) + step.batch * costs.saved_per_sequence * size.compute
    yield at_the_end + costs.adapting_bytes, 0
    loss = _loss(costs, size, -(-tokens // costs.stream_ranks), step.compiled)
    yield at_the_end + costs.head * size.copied + loss, 0

    unit, extra_memory = unit_memory(costs, size, step), _extra_memory(costs, step)
    stream = -(-tokens * costs.dim * size.stream // costs.stream_ranks)
    # All that a unit saved still exists, and the gradient of its result.
    working = tokens * unit.backward_per_token + stream + extra_memory.backward
    past_attention = tokens * costs.saved_past_attention * size.compute
    gradients = (costs.head + costs.linears_after) * size.weight
    for index, block in reversed([*enumerate(blocks)]):
        earlier = sum(saved[:index]) + (block.input or 0)
        own_gradients = round(block.share * costs.linears_in_blocks * size.weight)
        for number, passed in reversed([*enumerate(block.passes)]):
            live = earlier + block.saved_through(number + 1)
            # For weights that several passes share, the last one's backward pass computes all
            # gradients.
            computed_bytes = gradients + (own_gradients if number + 1 < len(block.passes) else 0)
            part = min(1.0, passed.units)
            yield live + round(part * working), computed_bytes
            # While attention runs, later activations do not exist yet, or no longer.
            for weights in passed.attends:
                attending = live - round(part * past_attention) - weights.saved
                yield attending + weights.forward, computed_bytes if block.input else 0
                yield attending + weights.backward + round(part * stream), computed_bytes
        gradients += own_gradients
    yield 0, costs.parameters * size.weight


class _Pass(NamedTuple):
    """One pass through a block, and what it saves for backward."""

    units: float
    extra_bytes: float  # bytes besides its units
    attends: Sequence[WeightsMemory]


@dataclass(frozen=True)
class _Block:
    """One block, and what it saves for backward."""

    share: float  # of the parameters in blocks
    copies: int  # bytes of autocast's copies of its linears
    passes: list[_Pass]
    unit: int  # bytes of one unit
    input: int | None  # bytes of its input if it is recomputed, else None

    @property
    def saved(self) -> int:
        """Bytes that it saves when the forward pass runs it."""
        return self.saved_through(len(self.passes)) if self.input is None else self.input

    def saved_through(self, number: int) -> int:
        """Return the bytes that its first passes save, so many of them."""
        passes = self.passes[:number]
        units = sum(passed.units for passed in passes) * self.unit
        saved = round(units + sum(passed.extra_bytes for passed in passes))
        return saved + self.copies + sum(w.saved for passed in passes for w in passed.attends)


def _blocks(costs: Costs, size: Precision, step: How, checkpointing: str) -> list[_Block]:
    """Return the blocks of a model."""
    tokens = step.batch * step.sequence
    memory = unit_memory(costs, size, step)
    unit = tokens * memory.kept_per_token + memory.saved + _extra_memory(costs, step).saved
    stream = -(-tokens * costs.dim * size.stream // costs.stream_ranks)
    shape = costs.passes
    extra_bytes: Sequence[Sequence[float]] = [(0.0,) * len(passes) for passes in shape]
    if costs.kept_beside is not None:
        extra_bytes = [[tokens * part for part in block] for block in costs.kept_beside(step)]
    attends = attention_weights(costs, step)
    recomputed = _checkpointed(checkpointing, len(shape))
    return [
        _Block(
            share=share,
            copies=round(share * costs.linears_in_blocks * size.copied),
            passes=[
                _Pass(units, extra_bytes[index][number], attends[index][number])
                for number, units in enumerate(shape[index])
            ],
            unit=unit,
            input=stream if recomputed[index] else None,
        )
        for index, share in enumerate(costs.weights_by_block)
    ]


def cached_copies(costs: Costs, precision: str, checkpointing: str) -> tuple[int, int]:
    """Return the bytes of the copies of the blocks' linears in autocast's cache.

    The first number is for all blocks, the second for those that keep it for a backward pass.
    """
    size = PRECISIONS[precision]
    shares, total = costs.weights_by_block, costs.linears_in_blocks * size.copied
    recomputed_blocks = _checkpointed(checkpointing, len(shares))
    operator_casts = costs.cast_by_operators * size.copied
    copies = [max(0, round(share * total) - operator_casts) for share in shares]
    saved = (
        copy for copy, recomputed in zip(copies, recomputed_blocks, strict=True) if not recomputed
    )
    return sum(copies), sum(saved)


def attention_weights(costs: Costs, step: How) -> list[list[list[WeightsMemory]]]:
    """Return, by block and pass, what its attentions hold for their weights."""
    if not costs.attends:
        return [[[] for _ in passes] for passes in costs.passes]
    masked = costs.causal or costs.window > 0
    return [
        [[attention.weights(step, masked) for attention in passed] for passed in block]
        for block in costs.attends
    ]


def unit_memory(costs: Costs, size: Precision, step: How) -> BlockMemory:
    """Return the memory of a unit block with the residual stream; see the families' ``costs``."""
    stream = costs.saved_stream_per_token * size.stream
    if not step.fused and costs.by_torch is not None:
        block = costs.by_torch(step)
        return replace(block, kept_per_token=block.kept_per_token + stream)
    compute, fp32 = costs.saved_per_token, costs.saved_fp32_per_token
    if step.by_operators:
        compute, fp32 = compute + costs.unfused_per_token, fp32 + costs.unfused_fp32_per_token
    return BlockMemory(
        kept_per_token=compute * size.compute + stream + fp32 * 4,
        backward_per_token=costs.backward_per_token * size.compute,
    )


def _extra_memory(costs: Costs, step: How) -> Beside:
    return costs.beside(step) if costs.beside else Beside()


def _loss(costs: Costs, size: Precision, tokens: int, compiled: bool) -> int:
    """Return the bytes of the log-softmax in FP32, and of the gradients after and before it.

    The norm before the head saves its input, and the head its own. The logits are freed before the
    backward pass begins. Inductor saves the logits instead, and writes their gradient over them.
    """
    by_logit = size.compute if compiled else 3 * 4
    return tokens * (by_logit * costs.rows + costs.dim * (size.stream + size.compute))


def _checkpointed(mode: str, count: int) -> list[bool]:
    """Return which blocks save only their input; see ``Model.choose_checkpointed``."""
    # "operators" saves most of a block: estimated as all of it.
    stride = 0 if mode == "operators" else CHECKPOINTING[mode]
    return [stride > 0 and index % stride == 0 for index in range(count)]
