"""What a model costs, as pure functions: FLOPs, and bytes by role.

A family sums its layers up in ``Costs``; the rest is the same for all. The activation estimate
assumes an attention that does not keep its S x S scores.
"""

from __future__ import annotations

from dataclasses import dataclass

from models._checkpointing import CHECKPOINTING
from models._share import Share


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
    unfused_per_token: int  # compute-dtype numbers one block saves more without fused kernels
    tables_bytes: int  # rotary tables and other constants, shared
    cached_per_sequence: int = 0  # numbers kept a sequence while decoding, whatever its length
    cached_fp32_per_sequence: int = 0  # FP32 numbers of the same kind
    cached_bytes: int = 0  # kept while decoding, whatever the batch
    scan_per_token: int = 0  # multiply-adds a token beside linears and scores, all layers
    causal: bool = True  # whether a token attends to those before it only
    window: int = 0  # of these, to so many at most, itself among them; 0: to all
    matmul_per_sequence: int = 0  # multiply-adds a sequence, whatever its length
    saved_per_sequence: int = 0  # compute-dtype numbers a sequence saves, whatever its length
    linear_parameters: int | None = None  # numbers in all linears; None: as ``matmul_per_token``
    unfused_fp32_per_token: int = 0  # FP32 numbers one block saves more without fused kernels
    routed: tuple[Routed, ...] = ()
    # What each block saves, in units of the block that the numbers above describe; empty: alike.
    block_sizes: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Estimated bytes by role, each at its own highest point of a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    cache: int  # decode state
    tables: int

    @property
    def total(self) -> int:
        """At the highest point of the step.

        Gradients take the place of activations: before the backward pass there are none, and after
        it there is nothing else. As both change evenly in between, one of the ends is highest.
        """
        lasting = self.weights + self.optimizer + self.cache + self.tables
        return lasting + max(self.activations, self.gradients)


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes a number takes: in the weights, in what the linears compute, in the residual stream."""

    weight: int
    compute: int
    stream: int


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(weight=4, compute=4, stream=4),
    "amp": Precision(weight=4, compute=2, stream=4),
    "half": Precision(weight=2, compute=2, stream=2),
}


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


def _pairs(sequence: int, context: int, window: int) -> int:
    growing = min(sequence, max(0, window - context)) if window else sequence
    rest = sequence - growing  # see a whole window each
    return growing * context + growing * (growing + 1) // 2 + rest * window


def footprint(
    costs: Costs,
    *,
    workload: str,
    batch: int,
    sequence: int,
    precision: str = "fp32",
    checkpointing: str = "none",
    fused: bool = True,
    optimizer_bytes: int | None = None,
    rope_tables: int = 1,
) -> Footprint:
    """Estimated memory of one step; ``sequence`` is the cache's length for prefill and decode.

    ``precision`` is one of ``PRECISIONS``; ``fused`` says whether the element-wise operators run as
    fused kernels; ``optimizer_bytes`` is what the optimizer keeps a parameter (None: AdamW's two
    moments in the weights' dtype); ``rope_tables`` is how many copies of the rotary tables exist.
    """
    size = PRECISIONS[precision]
    tokens = batch * sequence
    weights = costs.parameters * size.weight
    unfused = (0, 0) if fused else (costs.unfused_per_token, costs.unfused_fp32_per_token)
    block = tokens * (
        (costs.saved_per_token + unfused[0]) * size.compute
        + costs.saved_stream_per_token * size.stream
        + (costs.saved_fp32_per_token + unfused[1]) * 4
    )
    # Autocast keeps a cast copy of every linear's weight until the linear's backward.
    copy = size.compute if size.compute != size.weight else 0
    linears = costs.matmul_per_token if costs.linear_parameters is None else costs.linear_parameters
    block_copies, head_copy = linears * copy, costs.dim * costs.rows * copy
    beside = batch * costs.saved_per_sequence * size.compute
    sizes = costs.block_sizes or (1.0,) * costs.n_layers
    gradients = optimizer = cache = 0
    if workload == "train":
        moments = 2 * size.weight if optimizer_bytes is None else optimizer_bytes
        gradients, optimizer = weights, costs.parameters * moments
        # What "operators" keeps is most of a block: estimated as all of it.
        stride = 0 if checkpointing == "operators" else CHECKPOINTING[checkpointing]
        again = sizes[::stride] if stride else ()  # of the blocks that are checkpointed
        whole = sum(sizes) - sum(again)
        kept = round(whole * block) + len(again) * tokens * costs.dim * size.stream
        kept += round(block_copies * whole / sum(sizes)) + head_copy
        # The peak is where the loss begins its backward pass: the log-softmax in FP32, and the
        # gradients after and before it.
        logits = tokens * costs.rows * 4 * 3
        activations = kept + beside + max(logits, round(block * max(again, default=0)))
    else:
        decoding = workload in ("prefill", "decode", "generate")
        # One block's temporaries live at a time; a decode step has one token a sequence.
        live = block // sequence if workload == "decode" else block
        logits = batch * (1 if decoding else sequence) * costs.rows * size.compute
        if decoding:
            held = sequence * costs.cached_per_token + costs.cached_per_sequence
            held += sum(part.cached_per_token * part.share.slots(sequence) for part in costs.routed)
            cache = batch * (held * size.compute + costs.cached_fp32_per_sequence * 4)
            cache += costs.cached_bytes
        activations = max(live, logits, beside) + block_copies + head_copy
    return Footprint(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        cache=cache,
        tables=costs.tables_bytes * rope_tables,
    )
