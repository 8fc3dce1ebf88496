"""Costs of a model: the sizes that determine time and memory, and the FLOPs of a step.

A family describes its layers in ``Costs``; the rest is the same for all (``models.costs.footprint``
for memory). The saved activations assume an attention that writes no S x S weights. If the
requested one does, ``Attends`` gives the bytes for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kernels import hardware
from kernels.attention.memory import BUDGET_FRACTION, WeightsMemory, weights_memory
from models.layers.token_fraction import ALL_TOKENS, TokenFraction


@dataclass(frozen=True, kw_only=True)
class Routed:
    """Layers that compute only a fraction of the tokens; fields as in ``Costs``."""

    share: TokenFraction
    matmul_per_token: int
    score_width: int
    cached_per_token: int
    scan_per_token: int = 0
    attends_all: bool = False  # its queries see every token before them, not only the chosen


@dataclass(frozen=True, kw_only=True)
class BlockMemory:
    """Bytes that a unit block with PyTorch's operators holds."""

    kept_per_token: int  # kept for the backward pass, without the residual stream
    backward_per_token: int  # additional peak in its backward pass
    saved: int = 0  # kept for the backward pass at any number of tokens


class How(NamedTuple):
    """Step properties that determine the memory of a unit block."""

    workload: str
    batch: int
    sequence: int
    element: int  # bytes per number that linears compute
    stream: int  # bytes per number of the residual stream
    device_type: str
    fused: bool  # True for the library's fused kernels, False for PyTorch's operators
    compiled: bool  # True if torch.compile fuses the others
    attention: str = ""  # the requested backend; empty: one that holds no weights
    keys: int = 0  # keys that a query may see; 0: those of the sequence
    weights: int = 0  # peak bytes per token of attention's weights in inference
    shards: int = 1  # ranks that shard each layer, for what depends on its sizes
    rounded: bool = False  # True if linears multiply by rounded copies of their weights
    loss: str = ""  # how a loss without all logits is computed; empty: from all logits

    @property
    def by_operators(self) -> bool:
        """True if PyTorch's operators run one by one."""
        return not (self.fused or self.compiled)

    @property
    def autocast(self) -> bool:
        """True if linears compute in fewer bytes than the residual stream has."""
        return self.element < self.stream


class Beside(NamedTuple):
    """Bytes that a block holds besides those proportional to the tokens."""

    saved: int = 0  # kept for the backward pass
    backward: int = 0  # additional peak in its backward pass


@dataclass(frozen=True)
class Attends:
    """One attention of a block, for the memory of some backends."""

    heads: int
    groups: int
    head_dim: int
    queries: TokenFraction = ALL_TOKENS  # fraction of the tokens
    keys: TokenFraction = ALL_TOKENS
    placed: bool = False  # queries keep their original positions, with a mask per sequence

    def weights(self, step: How, masked: bool) -> WeightsMemory:
        """Return the bytes that the weights take."""
        return weights_memory(
            step.attention,
            batch=step.batch,
            heads=self.heads,
            groups=self.groups,
            length=self.queries.of(step.sequence),
            keys=self.keys.of(step.keys or step.sequence),
            dim=self.head_dim,
            element=step.element,
            masked=masked,
            # A compiler recomputes masks where they are needed.
            masks=masked * (not step.compiled) * (step.batch if self.placed else 1),
            budget=_budget(step.device_type),
        )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Sizes of one configuration that determine time and memory."""

    parameters: int  # all trainable numbers
    n_layers: int
    dim: int  # width of the residual stream
    rows: int  # rows of the vocabulary in the head
    matmul_per_token: int  # multiply-adds per token in the blocks' linears, all layers
    # query heads x head width, all layers: each (query, key) pair costs twice that
    score_width: int
    cached_per_token: int  # numbers per token in the decode state, all layers
    saved_per_token: int  # compute-dtype numbers per token that one block saves for backward
    saved_stream_per_token: int  # the same in the residual stream's dtype
    saved_fp32_per_token: int  # the same in FP32, whatever the precision
    table_bytes: int  # one rotary table
    rotating: int | None = None  # layers, each with a table unless they share one; None: all
    cached_per_sequence: int = 0  # numbers per sequence in the decode state, whatever its length
    cached_fp32_per_sequence: int = 0  # FP32 numbers of the same kind
    cached_bytes: int = 0  # decode state independent of the batch
    scan_per_token: int = 0  # multiply-adds per token besides linears and scores, all layers
    causal: bool = True  # True if a token attends only to those before it
    window: int = 0  # at most this many of them, including itself; 0: all
    matmul_per_sequence: int = 0  # multiply-adds per sequence, whatever its length
    saved_per_sequence: int = 0  # compute-dtype numbers saved per sequence, whatever its length
    linear_parameters: int | None = None  # numbers in all linears; None: as ``matmul_per_token``
    linears_after: int = 0  # those of them in linears after the blocks, without the head
    # additional compute-dtype numbers per token that a block saves without fused kernels
    unfused_per_token: int = 0
    unfused_fp32_per_token: int = 0  # FP32 numbers of the same kind
    # Replaces the fields about saving and the backward pass where too much differs without fused
    # kernels to be a sum; and the operator whose kernel makes the difference.
    by_torch: Callable[[How], BlockMemory] | None = None
    decisive: str = ""
    routed: tuple[Routed, ...] = ()
    # For each block, what each pass through it saves, in units of the block that the numbers above
    # describe; empty: one pass of one unit each.
    block_passes: tuple[tuple[float, ...], ...] = ()
    # For each block, bytes per token that each pass saves besides its units; None: nothing.
    kept_beside: Callable[[How], tuple[tuple[float, ...], ...]] | None = None
    # each block's fraction of their parameters; empty: all equal
    block_weights: tuple[float, ...] = ()
    # Peak of compute-dtype numbers per token in a unit's backward pass besides what it saved.
    backward_per_token: int = 0
    beside: Callable[[How], Beside] | None = None  # None: nothing
    # For each block, each pass's attentions; and the backend that runs where another is requested.
    attends: tuple[tuple[tuple[Attends, ...], ...], ...] = ()
    attention: Callable[[How], str] | None = None  # None: the requested one
    # The part of ``saved_per_token`` that a unit saves after its attention.
    saved_past_attention: int = 0
    # Peak bytes per token of a block where no backward pass follows, its input included; None: as
    # many as it would save for one.
    inference_per_token: Callable[[How], int] | None = None
    cast_by_operators: int = 0  # numbers in a block's linears that autocast does not cast
    # For each block, bytes per token of operators' outputs that checkpointing "operators" saves;
    # None: estimated as without checkpointing.
    operator_outputs: Callable[[How], tuple[float, ...]] | None = None
    # For each block, bytes that it saves of other ranks' activations; empty: nothing.
    gathered: tuple[int, ...] = ()
    computed_together: int = 0  # weights of a block whose gradients one operator computes
    largest_in_block: int = 0  # numbers in a block's largest weight, if it may exceed the head
    tied: bool = False  # True if the head's weights are the embedding's
    stream_ranks: int = 1  # ranks that split the residual stream and the loss
    state_bytes: int = 0  # state besides the weights, whatever the step
    # Peak between blocks and loss where a model adapts itself: in forward and training.
    adapting_bytes: int = 0

    @property
    def head(self) -> int:
        """Numbers in the head."""
        return self.dim * self.rows

    @property
    def largest_weight(self) -> int:
        """Numbers in the largest weight."""
        return max(self.head, self.largest_in_block)

    @property
    def linears(self) -> int:
        """Numbers in all linears, without the head."""
        linears = self.linear_parameters
        return self.matmul_per_token if linears is None else linears

    @property
    def linears_in_blocks(self) -> int:
        """Numbers in the blocks' linears, nearly all that blocks have."""
        return self.linears - self.linears_after

    @property
    def passes(self) -> tuple[tuple[float, ...], ...]:
        """Units of each pass through each block."""
        return self.block_passes or ((1.0,),) * self.n_layers

    @property
    def weights_by_block(self) -> tuple[float, ...]:
        """Each block's fraction of the parameters in blocks."""
        n_blocks = len(self.passes)
        return self.block_weights or (1 / n_blocks,) * n_blocks


def attention_parameters(dim: int, q_dim: int, kv_dim: int) -> int:
    """Count the parameters of an attention's linears; ``kv_dim`` columns of keys and of values."""
    return 2 * dim * (q_dim + kv_dim)


def attention_saved(dim: int, q_dim: int, kv_dim: int) -> int:
    """Count the numbers that a block without its feed-forward layer saves per token.

    These are both norms' outputs, the rotated queries, keys and values, the attention's output.
    """
    return 2 * (dim + q_dim + kv_dim)


def outside_blocks(dim: int, rows: int, tie_embeddings: bool) -> int:
    """Count the parameters of a language model's embedding, final norm and head."""
    return dim + (1 if tie_embeddings else 2) * rows * dim


def dense_block(
    step: How, *, dim: int, projected: int, rotating: int, attending: int, hidden: int
) -> int:
    """Return ``Costs.inference_per_token`` of a block of attention and SwiGLU, in that order.

    Numbers per token: ``projected`` at the start of attention and ``attending`` at its end,
    ``rotating`` in FP32 besides the former where PyTorch's steps norm and rotate; ``hidden`` is
    SwiGLU's width.
    """
    by_steps = step.by_operators
    # Besides, the block's input and its norm; later also the sum of input and attention.
    rotation = projected * step.element + by_steps * rotating * 4
    attention = 2 * dim * step.stream + max(rotation, attending * step.element + step.weights)
    # Gate and up, their product, and silu(gate).
    return max(attention, 3 * dim * step.stream + (3 + by_steps) * hidden * step.element)


def flops(
    costs: Costs,
    *,
    batch: int,
    sequence: int,
    training: bool = False,
    context: int = 0,
    last_only: bool = False,
) -> int:
    """Count the FLOPs that the mathematics of one step needs; a multiply-add is two.

    ``sequence`` new tokens each see the ``context`` before them and themselves (causal: half of the
    square, otherwise all of it). Backward is twice forward. Recomputation by checkpointing is not
    counted: these are the model's FLOPs, not the machine's. Routed layers count with their full
    fraction of the tokens.
    """
    pairs = (
        _pairs(sequence, context, costs.window) if costs.causal else sequence * (context + sequence)
    )
    head_tokens = 1 if last_only else sequence
    multiply_adds = (
        (costs.matmul_per_token + costs.scan_per_token) * sequence
        + 2 * costs.score_width * pairs
        + costs.head * head_tokens
        + costs.matmul_per_sequence
    )
    for part in costs.routed:
        before = part.share.of(context)
        tokens = part.share.of(context + sequence) - before
        visible_pairs = (
            part.share.of(pairs) if part.attends_all else _pairs(tokens, before, costs.window)
        )
        multiply_adds += (part.matmul_per_token + part.scan_per_token) * tokens
        multiply_adds += 2 * part.score_width * visible_pairs
    forward = 2 * multiply_adds
    return batch * forward * (3 if training else 1)


def _budget(device_type: str) -> int:
    """Return the bytes for the weights of a chunk; no bound if the device is not here."""
    if device_type == "cuda" and not hardware.has_gpu():
        return 1 << 62
    return int(BUDGET_FRACTION * hardware.of(device_type).total_bytes)


def _pairs(sequence: int, context: int, window: int) -> int:
    growing = min(sequence, max(0, window - context)) if window else sequence
    with_full_window = sequence - growing  # these see a full window each
    return growing * context + growing * (growing + 1) // 2 + with_full_window * window
