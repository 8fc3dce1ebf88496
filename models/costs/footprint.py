"""Peak memory of a step of a model: bytes by role, from the sizes in ``Costs``.

A training step has its peak in its backward pass, which ``_training`` follows: its start at the
loss, and the start of each block's backward pass. From there on the activations of a block make
room for the gradients of its weights, evenly enough that only the ends count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernels.attention.memory import WeightsMemory
from models.costs.model_costs import Beside, BlockMemory, Costs, How
from models.execution.checkpointing import CHECKPOINTING
from models.layers.quantized_linear import Saving


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Estimated bytes by role, each at its own peak within a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    cache: int  # decode state
    tables: int  # rotary tables, and other constants of a model
    workspaces: int  # of libraries, for their matrix products
    together: int  # activations and gradients at their joint peak

    @property
    def total(self) -> int:
        """Bytes at the peak of the step."""
        lasting = self.weights + self.optimizer + self.cache + self.tables + self.workspaces
        return lasting + self.together


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes per number: in the weights, in the linears' results, in the residual stream."""

    weight: int
    compute: int
    stream: int


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """State that ranks shard: moments and gradients, and weights between steps.

    ``shares_weights``: gathered weights of a block are released after it has computed.
    """

    ranks: int
    shares_weights: bool

    def gradients(self, made: int, costs: Costs, size: Precision) -> int:
        """Return the bytes of gradients when the backward pass has computed ``made`` of them.

        That is the shard, and besides it those that are being reduced and their copy.
        """
        full = costs.parameters * size.weight
        share = -(-full // self.ranks)
        largest = max(_block(costs, size), costs.dim * costs.rows * size.weight)
        return share + min(made, 2 * largest)

    def weights(self, costs: Costs, size: Precision) -> int:
        """Return the bytes of weights: the shard, and gathered ones beside it.

        These are all of them, or with ``shares_weights`` those outside of blocks and of two blocks.
        """
        full = costs.parameters * size.weight
        share = -(-full // self.ranks)
        if not self.shares_weights:
            return share + full
        outside = full - _in_blocks(costs) * size.weight
        return share + outside + 2 * _block(costs, size)


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(weight=4, compute=4, stream=4),
    "amp": Precision(weight=4, compute=2, stream=4),
    "half": Precision(weight=2, compute=2, stream=2),
}


def footprint(
    costs: Costs,
    *,
    workload: str,
    batch: int,
    sequence: int,
    precision: str = "fp32",
    checkpointing: str = "none",
    fused: bool = True,
    compiled: bool = False,
    device_type: str = "cuda",
    optimizer_bytes: int | None = None,
    rope_shared: bool = False,
    workspace_bytes: int = 0,
    chunk: int = 0,
    attention: str = "",
    quantized: Saving | None = None,
    sharding: Sharding | None = None,
) -> Footprint:
    """Estimate the memory of one step; ``sequence`` is the cache's length for prefill and decode.

    A prompt may be processed in pieces of ``chunk`` tokens (0: all at once); only one piece's
    activations exist at a time.

    ``precision`` is one of ``PRECISIONS``. ``fused``: the operators run as the library's fused
    kernels; otherwise PyTorch's run on ``device_type``, and ``compiled`` tells whether
    torch.compile fuses them. ``optimizer_bytes``: bytes of the optimizer per parameter (None:
    AdamW's two moments in the weights' dtype). ``rope_shared``: one rotary table serves all layers.
    ``workspace_bytes``: memory of libraries for their products. ``attention``: the requested
    backend, if it may hold its weights. ``quantized``: what the codes of linear layers change, in
    inference. ``sharding``: what several ranks shard in a training step, whose ``batch`` is that of
    one rank.
    """
    size = PRECISIONS[precision]
    computing = size.compute, size.stream, device_type, fused, compiled
    how = How(workload, batch, sequence, *computing, attention)
    if costs.attention is not None:
        how = how._replace(attention=costs.attention(how))
    weights = costs.parameters * size.weight
    rotating = costs.n_layers if costs.rotating is None else costs.rotating
    copies = min(1, rotating) if rope_shared else rotating
    tables = costs.table_bytes * copies + costs.state_bytes
    if workload == "train":
        moments = 2 * size.weight if optimizer_bytes is None else optimizer_bytes
        course = list(_training(costs, size, how, checkpointing))
        gradients, optimizer = weights, costs.parameters * moments
        if sharding is not None:
            course = [(saved, sharding.gradients(made, costs, size)) for saved, made in course]
            gradients = max(made for _, made in course)
            weights = sharding.weights(costs, size)
            optimizer = -(-optimizer // sharding.ranks)
        return Footprint(
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            activations=max(activations for activations, _ in course),
            cache=0,
            tables=tables,
            workspaces=workspace_bytes,
            together=max(map(sum, course)),
        )
    taken = sequence
    if workload == "decode":  # one token of each sequence
        taken = 1
    elif workload in _DECODING and chunk:
        taken = min(chunk, sequence)
    how = how._replace(sequence=taken, keys=sequence if taken < sequence else 0)
    activations = _inference(costs, size, how, quantized)
    if quantized is not None:
        weights += quantized.numbers * (1 - size.weight) + quantized.scale_bytes
    return Footprint(
        weights=weights,
        gradients=0,
        optimizer=0,
        activations=activations,
        cache=_cache(costs, size, batch, sequence) if workload in _DECODING else 0,
        tables=tables,
        workspaces=workspace_bytes,
        together=activations,
    )


_DECODING = ("prefill", "decode", "generate")


def _training(
    costs: Costs, size: Precision, how: How, checkpointing: str
) -> Iterator[tuple[int, int]]:
    """Yield bytes of activations and of gradients along the backward pass, from the loss on."""
    tokens = how.batch * how.sequence
    block, beside = _unit(costs, size, how), _beside(costs, how)
    unit = tokens * block.kept_per_token + block.saved + beside.saved
    # All that it saved still exists, and the gradient of its result.
    working = tokens * (block.backward_per_token + costs.dim * size.stream) + beside.backward
    stream = tokens * costs.dim * size.stream
    came = -(-stream // costs.stream_ranks)  # a checkpointed block saves its input
    passes = costs.block_passes or ((1.0,),) * costs.n_layers
    shares = costs.block_weights or (1 / len(passes),) * len(passes)
    copies = [round(share * _copies(costs, size)) for share in shares]
    again = _checkpointed(checkpointing, len(passes))
    more = [(0.0,) * len(sizes) for sizes in passes]
    if costs.kept_beside is not None:
        more = [tuple(tokens * extra for extra in passed) for passed in costs.kept_beside(how)]
    attends = _attends(costs, how)
    past = tokens * costs.saved_past_attention * size.compute
    saved_by_block = [
        came if recomputed else round(sum(sizes) * unit + sum(extra)) + copy + _kept(weights)
        for sizes, extra, copy, weights, recomputed in zip(
            passes, more, copies, attends, again, strict=True
        )
    ]
    fixed = how.batch * costs.saved_per_sequence * size.compute
    yield sum(saved_by_block) + fixed + costs.adapting_bytes, 0
    yield sum(saved_by_block) + fixed + _head_copy(costs, size) + _loss(costs, tokens), 0
    after = costs.dim * costs.rows + costs.linears_after
    gradients = after * size.weight
    for index in reversed(range(len(passes))):
        before, sizes = sum(saved_by_block[:index]), passes[index]
        if again[index]:
            before += came
        own = round(shares[index] * _in_blocks(costs) * size.weight)
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


def _attends(costs: Costs, how: How) -> list[list[list[WeightsMemory]]]:
    """Return, by block and pass, what its attentions hold for their weights."""
    if not costs.attends:
        return [[] for _ in costs.block_passes or range(costs.n_layers)]
    masked = costs.causal or costs.window > 0
    return [
        [[attention.weights(how, masked) for attention in passed] for passed in block]
        for block in costs.attends
    ]


def _kept(passes: Sequence[Sequence[WeightsMemory]]) -> int:
    return sum(weights.saved for passed in passes for weights in passed)


def _unit(costs: Costs, size: Precision, how: How) -> BlockMemory:
    """Return the memory of a unit block, with the stream's part; see the families' ``costs``."""
    stream = costs.saved_stream_per_token * size.stream
    if not how.fused and costs.by_torch is not None:
        block = costs.by_torch(how)
        return replace(block, kept_per_token=block.kept_per_token + stream)
    compute, fp32 = costs.saved_per_token, costs.saved_fp32_per_token
    if not how.fused and not how.compiled:
        compute, fp32 = compute + costs.unfused_per_token, fp32 + costs.unfused_fp32_per_token
    return BlockMemory(
        kept_per_token=compute * size.compute + stream + fp32 * 4,
        backward_per_token=costs.backward_per_token * size.compute,
    )


def _beside(costs: Costs, how: How) -> Beside:
    return costs.beside(how) if costs.beside else Beside()


def _loss(costs: Costs, tokens: int) -> int:
    """Return the bytes of the log-softmax in FP32, and of the gradients after and before it."""
    return 3 * 4 * tokens * costs.rows


def _copies(costs: Costs, size: Precision) -> int:
    """Return the bytes of autocast's copies of the blocks' linears, saved until their backward."""
    return _in_blocks(costs) * (size.compute if size.compute != size.weight else 0)


def cached_copies(costs: Costs, precision: str, checkpointing: str) -> tuple[int, int]:
    """Return the bytes of ``_copies`` in autocast's cache.

    The first number is for all blocks, the second for those that keep it for a backward pass.
    """
    size = PRECISIONS[precision]
    shares = costs.block_weights or (1 / costs.n_layers,) * costs.n_layers
    again = _checkpointed(checkpointing, len(shares))
    total = _copies(costs, size)
    once = costs.cast_by_operators * size.compute if total else 0
    copies = [max(0, round(share * total) - once) for share in shares]
    saved = (copy for copy, recomputed in zip(copies, again, strict=True) if not recomputed)
    return sum(copies), sum(saved)


def _head_copy(costs: Costs, size: Precision) -> int:
    """Return the same bytes for the head."""
    return costs.dim * costs.rows * (size.compute if size.compute != size.weight else 0)


def _in_blocks(costs: Costs) -> int:
    """Return the numbers in the blocks' linears, nearly all that blocks have."""
    linears = costs.matmul_per_token if costs.linear_parameters is None else costs.linear_parameters
    return linears - costs.linears_after


def _block(costs: Costs, size: Precision) -> int:
    """Return the bytes of the largest block's linears."""
    return round(
        max(costs.block_weights or (1 / costs.n_layers,)) * _in_blocks(costs) * size.weight
    )


def _checkpointed(mode: str, count: int) -> list[bool]:
    """Return which blocks save only their input; see ``Model.choose_checkpointed``."""
    # "operators" saves most of a block: estimated as all of it.
    stride = 0 if mode == "operators" else CHECKPOINTING[mode]
    return [stride > 0 and index % stride == 0 for index in range(count)]


def _inference(costs: Costs, size: Precision, how: How, quantized: Saving | None) -> int:
    """Return the bytes of one block's temporaries at a time, or of the logits.

    Autocast's copies stay, but not of codes. An operator may widen codes for its product: one
    layer's, in FP32 and in its result's dtype.
    """
    decoding, tokens = how.workload in _DECODING, how.batch * how.sequence
    weights = [w.inference for block in _attends(costs, how) for passed in block for w in passed]
    how = how._replace(weights=max(weights, default=0) // tokens)
    if costs.inference_per_token is None:
        unit = _unit(costs, size, how)
        live = tokens * unit.kept_per_token + unit.saved
    else:
        live = tokens * costs.inference_per_token(how)
    last = tokens * costs.dim * size.stream  # the blocks' result, and normalised
    logits = how.batch * (1 if decoding else how.sequence) * costs.rows * size.compute + 2 * last
    beside = how.batch * costs.saved_per_sequence * size.compute
    adapting = 0 if decoding else last + costs.adapting_bytes
    copies = _copies(costs, size)
    if copies:
        once = costs.cast_by_operators * size.compute
        copies -= costs.n_layers * once
        live += once
    if quantized is not None:
        copies = max(0, copies - quantized.numbers * size.compute)
        live += quantized.widened * (4 + (size.compute if size.compute < 4 else 0))
    return copies + max(live, logits + _head_copy(costs, size), beside, adapting)


def _cache(costs: Costs, size: Precision, batch: int, sequence: int) -> int:
    """Return the bytes of the decode state of so many sequences."""
    numbers = sequence * costs.cached_per_token + costs.cached_per_sequence
    numbers += sum(part.cached_per_token * part.share.slots(sequence) for part in costs.routed)
    return (
        batch * (numbers * size.compute + costs.cached_fp32_per_sequence * 4) + costs.cached_bytes
    )
