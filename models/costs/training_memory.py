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
from kernels.linear_cross_entropy import loss_memory
from models.costs.model_costs import Beside, BlockMemory, Costs, How
from models.costs.precision import PRECISIONS, Precision
from models.execution.checkpointing import CHECKPOINTING


def training_course(
    costs: Costs, size: Precision, step: How, checkpointing: str, accumulates: bool = False
) -> Iterator[tuple[int, int]]:
    """Yield bytes of activations and of gradients along the backward pass, from the loss on.

    ``accumulates``: gradients are added to those of earlier micro-batches, which exist besides, and
    autocast's copies of weights are left of these. Then gradients of copies wait until the end of
    the backward pass, because they were made before everything else, and all others are added at
    once.
    """
    tokens = step.batch * step.sequence
    of_gradient = size.copied if accumulates else size.weight
    blocks = _blocks(costs, size, step, checkpointing, accumulates)
    saved = [block.saved for block in blocks]
    at_the_end = sum(saved) + step.batch * costs.saved_per_sequence * size.compute
    # Autocast's cache has the copies of recomputed blocks, too, until the forward pass ends.
    cached = sum(block.cached for block in blocks)
    if accumulates or step.compiled or step.rounded:
        cached = 0
    yield at_the_end, 0
    yield at_the_end + cached + costs.adapting_bytes, 0
    loss = _loss(costs, size, step)
    yield at_the_end + cached + loss.forward, 0
    yield at_the_end + loss.backward, 0
    yield at_the_end + loss.after, costs.head * (0 if accumulates and size.copied else size.weight)

    unit, extra_memory = unit_memory(costs, size, step), _extra_memory(costs, step)
    stream = -(-tokens * costs.dim * size.stream // costs.stream_ranks)
    # All that a unit saved still exists, and the gradient of its result.
    working = tokens * unit.backward_per_token + stream + extra_memory.backward
    together_bytes = costs.computed_together * size.compute
    past_attention = tokens * costs.saved_past_attention * size.compute
    gradients = (costs.head + costs.linears_after) * of_gradient
    for index, block in reversed([*enumerate(blocks)]):
        earlier = sum(saved[:index]) + (block.input or 0)
        own_linears = round(block.share * costs.linears_in_blocks)
        if accumulates:
            own_linears -= costs.cast_by_operators
        own_gradients = own_linears * of_gradient
        for number, passed in reversed([*enumerate(block.passes)]):
            live = earlier + block.saved_through(number + 1)
            # For weights that several passes share, the last one's backward pass computes all
            # gradients.
            computed_bytes = gradients + (own_gradients if number + 1 < len(block.passes) else 0)
            part = min(1.0, passed.units)
            yield live + round(part * working), computed_bytes + together_bytes
            # While attention runs, later activations do not exist yet, or no longer.
            for weights in passed.attends:
                attending = live - round(part * past_attention) - weights.saved
                yield attending + weights.forward, computed_bytes if block.input else 0
                yield attending + weights.backward + round(part * stream), computed_bytes
        gradients += own_gradients
    # The embedding computes a gradient of its own, which is then added to the head's.
    shared_bytes = costs.head * size.weight if costs.tied else 0
    yield stream + shared_bytes, gradients if accumulates else costs.parameters * size.weight


def offloaded_course(
    costs: Costs, size: Precision, step: How, checkpointing: str
) -> Iterator[tuple[int, int]]:
    """Yield the same as ``training_course`` if all tensors that autograd saves are on the host.

    The device holds the tensors of one operator, and a checkpointed block while it is recomputed.
    """
    tokens = step.batch * step.sequence
    blocks = _blocks(costs, size, step, checkpointing, False)
    copies = 0 if step.compiled else sum(max(0, block.copies - block.casts) for block in blocks)
    loss, inputs = _loss(costs, size, step), 0
    if not step.loss:  # the host has them
        inputs = loss.after - costs.head * size.copied
    yield 0, 0
    yield copies + costs.adapting_bytes, 0
    yield copies + loss.forward - inputs, 0
    yield loss.backward - loss.after, 0
    yield loss.after, costs.head * size.weight
    stream = -(-tokens * costs.dim * size.stream // costs.stream_ranks)
    backward = tokens * unit_memory(costs, size, step).backward_per_token
    extra_memory = _extra_memory(costs, step)
    # The saved input of the widest operator, its gradient, and that of its result.
    gradients_together = costs.computed_together * size.compute
    working = backward * 5 // 2 + 2 * stream + sum(extra_memory) + gradients_together
    gradients = (costs.head + costs.linears_after) * size.weight
    for block in reversed(blocks):
        if block.input is None:
            yield working, gradients
        else:
            recomputed = block.saved_through(len(block.passes))
            working = backward + stream + extra_memory.backward + gradients_together
            yield recomputed + working, gradients
        gradients += round(block.share * costs.linears_in_blocks * size.weight)
    shared_bytes = costs.head * size.weight if costs.tied else 0
    yield stream + shared_bytes, costs.parameters * size.weight


class _Pass(NamedTuple):
    """One pass through a block, and its memory saved for backward."""

    units: float
    extra_bytes: float  # bytes besides its units
    attends: Sequence[WeightsMemory]


@dataclass(frozen=True)
class _Block:
    """One block, and its memory saved for backward."""

    share: float  # share of the parameters in blocks
    copies: int  # bytes of autocast's copies of its linears
    passes: list[_Pass]
    unit: int  # bytes of one unit
    input: int | None  # bytes of its input if it is recomputed, else None
    outputs: int  # bytes of outputs that are saved if the rest is recomputed
    casts: int  # bytes of the copies that operators make themselves

    @property
    def saved(self) -> int:
        """Bytes that it saves when the forward pass runs it."""
        if self.input is None:
            return self.saved_through(len(self.passes))
        return self.input + self.outputs

    @property
    def cached(self) -> int:
        """Bytes of copies that it does not save, but autocast's cache."""
        return 0 if self.input is None else max(0, self.copies - self.casts)

    def saved_through(self, number: int) -> int:
        """Return the bytes that its first passes save, so many of them."""
        passes = self.passes[:number]
        units = sum(passed.units for passed in passes) * self.unit
        saved = round(units + sum(passed.extra_bytes for passed in passes))
        return saved + self.copies + sum(w.saved for passed in passes for w in passed.attends)


def _blocks(
    costs: Costs, size: Precision, step: How, checkpointing: str, accumulates: bool
) -> list[_Block]:
    """Return the blocks of a model."""
    cast = costs.cast_by_operators if accumulates else None  # earlier passes leave the other casts
    tokens = step.batch * step.sequence
    memory = unit_memory(costs, size, step)
    unit = tokens * memory.kept_per_token + memory.saved + _extra_memory(costs, step).saved
    stream = -(-tokens * costs.dim * size.stream // costs.stream_ranks)
    shape = costs.passes
    extra_bytes: Sequence[Sequence[float]] = [(0.0,) * len(passes) for passes in shape]
    if costs.kept_beside is not None:
        extra_bytes = [[tokens * part for part in block] for block in costs.kept_beside(step)]
    if costs.gathered:  # each block has one pass
        extra_bytes = [
            [sum(block) + more] for block, more in zip(extra_bytes, costs.gathered, strict=True)
        ]
    attends = attention_weights(costs, step)
    recomputed = _checkpointed(checkpointing, len(shape))
    outputs: Sequence[float] = [0.0] * len(shape)
    if checkpointing == "operators":
        if costs.operator_outputs is None:
            recomputed = [False] * len(shape)
        else:
            outputs = costs.operator_outputs(step)

    def copies_of(share: float) -> int:
        linears = round(share * costs.linears_in_blocks if cast is None else cast)
        if step.rounded and not size.copied:  # otherwise autocast's copies are those
            return max(0, linears - costs.cast_by_operators) * size.weight
        return linears * size.copied

    return [
        _Block(
            share=share,
            copies=copies_of(share),
            passes=[
                _Pass(units, extra_bytes[index][number], attends[index][number])
                for number, units in enumerate(shape[index])
            ],
            unit=unit,
            input=stream if recomputed[index] else None,
            outputs=round(tokens * outputs[index]),
            casts=costs.cast_by_operators * size.copied,
        )
        for index, share in enumerate(costs.weights_by_block)
    ]


def cached_copies(costs: Costs, precision: str) -> int:
    """Return the bytes of the copies of the blocks' linears in autocast's cache."""
    size = PRECISIONS[precision]
    total, operator_casts = costs.linears_in_blocks * size.copied, costs.cast_by_operators
    copies = (
        round(share * total) - operator_casts * size.copied for share in costs.weights_by_block
    )
    return sum(max(0, copy) for copy in copies)


def attention_weights(costs: Costs, step: How) -> list[list[list[WeightsMemory]]]:
    """Return the memory of attention weights by block and pass."""
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


class _LossMemory(NamedTuple):
    """Bytes of the loss: peaks of its passes; ``after`` them, without the head's gradient."""

    forward: int
    backward: int
    after: int


def _loss(costs: Costs, size: Precision, step: How) -> _LossMemory:
    """Return the memory of the loss.

    The norm before the head saves its input, and the head its own and a copy of its weights. With
    all logits there is a copy of them in FP32 and the log-softmax; in the backward pass, which
    begins without them, also the gradients after and before it. Inductor saves the logits instead,
    and writes their gradient over them. Without all logits, the loss computes the gradients in the
    forward pass. In the end the input of the norm and the gradient of its result are left, and the
    head's gradient before it is cast.
    """
    tokens = -(-step.batch * step.sequence // costs.stream_ranks)
    inputs = tokens * costs.dim * (size.stream + size.compute) + costs.head * size.copied
    if step.loss and costs.rows:
        sizes = {"n_rows": tokens, "dim": costs.dim, "n_words": costs.rows}
        forward = loss_memory(step.loss, **sizes, element=size.compute)
        return _LossMemory(inputs + forward, 0, inputs)
    logits = tokens * costs.rows
    if step.compiled:
        return _LossMemory(inputs + logits * size.compute, inputs + logits * size.compute, inputs)
    copied = 4 if size.compute < 4 else 0
    forward = logits * (size.compute + copied + 4)
    return _LossMemory(inputs + forward, inputs + logits * 3 * 4, inputs)


def _checkpointed(mode: str, count: int) -> list[bool]:
    """Return which blocks save only their input; see ``Model.choose_checkpointed``."""
    stride = CHECKPOINTING[mode]
    return [stride > 0 and index % stride == 0 for index in range(count)]
