"""What a model costs: the sizes that time and memory follow from, and the FLOPs of a step.

A family sums its layers up in ``Costs``; the rest is the same for all (``models._footprint`` for
memory). What is saved assumes an attention that writes no S x S weights down; where one that does
is asked for, ``Attends`` says what is held for these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kernels import hardware
from kernels.attention._memory import BUDGET_FRACTION, WeightsMemory, weights_memory
from models._share import ALL, Share


@dataclass(frozen=True, kw_only=True)
class Routed:
    """What is computed of a share of the tokens only, beside the rest; fields as of ``Costs``."""

    share: Share
    matmul_per_token: int
    score_width: int
    cached_per_token: int
    scan_per_token: int = 0
    attends_all: bool = False  # its queries see every token before them, not only the chosen


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a unit block holds whose operators are PyTorch's, in bytes."""

    kept_per_token: int  # for its backward pass, the residual stream aside
    backward_per_token: int  # beside at most, in its backward pass
    kept: int = 0  # for its backward pass, whatever the tokens


class How(NamedTuple):
    """What decides on what a unit block holds."""

    workload: str
    batch: int
    sequence: int
    element: int  # bytes a number that linears compute
    stream: int  # bytes a number of the residual stream
    device_type: str
    fused: bool  # whether the operators are the library's fused kernels, or PyTorch's
    compiled: bool  # whether torch.compile fuses what is not
    attention: str = ""  # the backend that was asked for; empty: one that holds no weights
    keys: int = 0  # that a query may see; 0: of the sequence
    weights: int = 0  # bytes a token that attention's weights take at most in inference

    @property
    def autocast(self) -> bool:
        """Whether linears compute in fewer bytes than the stream has."""
        return self.element < self.stream


class Beside(NamedTuple):
    """Bytes that a block holds beside what is so many a token."""

    kept: int = 0  # for its backward pass
    backward: int = 0  # more at most, in its backward pass


@dataclass(frozen=True)
class Attends:
    """One attention of a block, for what some backends hold of it."""

    heads: int
    groups: int
    head_dim: int
    queries: Share = ALL  # of the tokens
    keys: Share = ALL
    placed: bool = False  # each query where it stood, by a mask of each sequence's own

    def weights(self, how: How, masked: bool) -> WeightsMemory:
        """What the weights take."""
        return weights_memory(
            how.attention,
            batch=how.batch,
            heads=self.heads,
            groups=self.groups,
            length=self.queries.of(how.sequence),
            keys=self.keys.of(how.keys or how.sequence),
            dim=self.head_dim,
            element=how.element,
            masked=masked,
            # A compiler makes masks again where they are needed.
            masks=masked * (not how.compiled) * (how.batch if self.placed else 1),
            budget=_budget(how.device_type),
        )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The sizes of one configuration that time and memory follow from."""

    parameters: int  # all trainable numbers
    n_layers: int
    dim: int  # width of the residual stream
    rows: int  # rows of the vocabulary in the head
    matmul_per_token: int  # multiply-adds a token in the blocks' linears, all layers
    score_width: int  # query heads x head width, all layers: each (query, key) pair costs twice it
    cached_per_token: int  # numbers kept a token while decoding, all layers
    saved_per_token: int  # compute-dtype numbers one block saves a token for its backward
    saved_stream_per_token: int  # numbers one block saves a token in the residual stream's dtype
    saved_fp32_per_token: int  # FP32 numbers one block saves a token whatever the precision
    table_bytes: int  # one rotary table
    rotating: int | None = None  # layers, each with a table unless they share one; None: all
    cached_per_sequence: int = 0  # numbers kept a sequence while decoding, whatever its length
    cached_fp32_per_sequence: int = 0  # FP32 numbers of the same kind
    cached_bytes: int = 0  # kept while decoding, whatever the batch
    scan_per_token: int = 0  # multiply-adds a token beside linears and scores, all layers
    causal: bool = True  # whether a token attends to those before it only
    window: int = 0  # of these, to so many at most, itself among them; 0: to all
    matmul_per_sequence: int = 0  # multiply-adds a sequence, whatever its length
    saved_per_sequence: int = 0  # compute-dtype numbers a sequence saves, whatever its length
    linear_parameters: int | None = None  # numbers in all linears; None: as ``matmul_per_token``
    linears_after: int = 0  # of these, in those that come after the blocks; the head is none
    unfused_per_token: int = 0  # compute-dtype numbers one block saves more without fused kernels
    unfused_fp32_per_token: int = 0  # FP32 numbers of the same kind
    # What stands for all that is said of saving and of the backward pass here, where too much is
    # other without fused kernels to be a sum; and the operator whose kernel makes the difference.
    by_torch: Callable[[How], Held] | None = None
    decisive: str = ""
    routed: tuple[Routed, ...] = ()
    # By block, what each pass through it saves, in units of the block that the numbers above
    # describe; empty: one pass of one unit each.
    block_passes: tuple[tuple[float, ...], ...] = ()
    # By block, bytes a token that each pass keeps beside its units; None: nothing.
    kept_beside: Callable[[How], tuple[tuple[float, ...], ...]] | None = None
    block_weights: tuple[float, ...] = ()  # each block's share of their parameters; empty: alike
    # Compute-dtype numbers a token that a unit's backward pass holds at most beside what it saved.
    backward_per_token: int = 0
    beside: Callable[[How], Beside] | None = None  # None: nothing
    # By block, each pass's attentions; and by which backend they run where another is asked for.
    attends: tuple[tuple[tuple[Attends, ...], ...], ...] = ()
    attention: Callable[[How], str] | None = None  # None: the one that was asked for
    # Compute-dtype numbers a token that a unit saves past its attention, of ``saved_per_token``.
    saved_past_attention: int = 0
    # Bytes a token that a block holds at most where no backward pass follows, its input included;
    # None: as many as it would keep for one.
    inference_per_token: Callable[[How], int] | None = None
    cast_by_operators: int = 0  # of the linears of a block, numbers that autocast does not cast
    stream_ranks: int = 1  # among which the stream between layers is divided
    state_bytes: int = 0  # beside the weights, whatever the step: what a model goes by
    # Held at most between blocks and loss where a model adapts itself: in forward and training.
    adapting_bytes: int = 0


def dense_block(
    how: How, *, dim: int, projected: int, rotating: int, attending: int, hidden: int
) -> int:
    """``Costs.inference_per_token`` of a block of attention and SwiGLU, in that order.

    Numbers a token: ``projected`` as attention begins and ``attending`` as it ends, ``rotating`` in
    FP32 beside the former where PyTorch's steps norm and rotate; ``hidden`` is SwiGLU's width.
    """
    by_steps = not (how.fused or how.compiled)
    # Beside each the block's input and its norm; later also the sum of input and attention.
    rotation = projected * how.element + by_steps * rotating * 4
    attention = 2 * dim * how.stream + max(rotation, attending * how.element + how.weights)
    # Gate and up, their product, and silu(gate).
    return max(attention, 3 * dim * how.stream + (3 + by_steps) * hidden * how.element)


def flops(
    costs: Costs,
    *,
    batch: int,
    sequence: int,
    training: bool = False,
    context: int = 0,
    last_only: bool = False,
) -> int:
    """FLOPs that the mathematics of one step needs; a multiply-add is two.

    ``sequence`` new tokens each see the ``context`` before them and themselves (causal: half of
    the square, otherwise all of it). Backward is twice forward. What checkpointing computes again
    is not counted: these are the model's FLOPs, not the machine's. Of what is routed, the whole
    share is.
    """
    pairs = (
        _pairs(sequence, context, costs.window) if costs.causal else sequence * (context + sequence)
    )
    head_tokens = 1 if last_only else sequence
    multiply_adds = (
        (costs.matmul_per_token + costs.scan_per_token) * sequence
        + 2 * costs.score_width * pairs
        + costs.dim * costs.rows * head_tokens
        + costs.matmul_per_sequence
    )
    for part in costs.routed:
        before = part.share.of(context)
        tokens = part.share.of(context + sequence) - before
        seen = part.share.of(pairs) if part.attends_all else _pairs(tokens, before, costs.window)
        multiply_adds += (part.matmul_per_token + part.scan_per_token) * tokens
        multiply_adds += 2 * part.score_width * seen
    forward = 2 * multiply_adds
    return batch * forward * (3 if training else 1)


def _budget(device_type: str) -> int:
    """Bytes for the weights of a chunk; estimated where there is no such device: no bound."""
    if device_type == "cuda" and not hardware.has_gpu():
        return 1 << 62
    return int(BUDGET_FRACTION * hardware.of(device_type).total_bytes)


def _pairs(sequence: int, context: int, window: int) -> int:
    growing = min(sequence, max(0, window - context)) if window else sequence
    rest = sequence - growing  # see a whole window each
    return growing * context + growing * (growing + 1) // 2 + rest * window
