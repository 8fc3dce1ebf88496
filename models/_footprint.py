"""What a step of a model holds in memory at most: bytes by role, from the sizes in ``Costs``.

A training step has its peak in its backward pass, whose course ``_training`` follows: where the
loss begins it, and where the backward pass of each block does. From there on the activations of a
block make room for the gradients of its weights, evenly enough that only the ends count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernels.attention._memory import WeightsMemory
from models._checkpointing import CHECKPOINTING
from models._costs import Beside, Costs, Held, How
from models._quantized import Saving


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Estimated bytes by role, each at its own highest point of a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    cache: int  # decode state
    tables: int  # rotary ones, and whatever else a model goes by
    workspaces: int  # that a library keeps for its matrix products
    together: int  # activations and gradients where both together are highest

    @property
    def total(self) -> int:
        """At the highest point of the step."""
        lasting = self.weights + self.optimizer + self.cache + self.tables + self.workspaces
        return lasting + self.together


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes a number takes: in the weights, in what the linears compute, in the residual stream."""

    weight: int
    compute: int
    stream: int


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """What ranks keep a share of each: moments, and where it says so gradients and weights."""

    ranks: int
    shares_gradients: bool
    shares_weights: bool

    def gradients(self, made: int, costs: Costs, size: Precision) -> int:
        """Bytes held when the backward pass has ``made`` so many of them.

        The share, and beside it all, or those that are just being summed and their copy.
        """
        whole = costs.parameters * size.weight
        share = -(-whole // self.ranks)
        if not self.shares_gradients:
            return whole + share
        largest = max(_block(costs, size), costs.dim * costs.rows * size.weight)
        return share + min(made, 2 * largest)

    def weights(self, costs: Costs, size: Precision) -> int:
        """Bytes of weights, with one block's that are gathered."""
        whole = costs.parameters * size.weight
        if not self.shares_weights:
            return whole
        blocks = _in_blocks(costs) * size.weight
        return whole - blocks + -(-blocks // self.ranks) + _block(costs, size)


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
    """Estimated memory of one step; ``sequence`` is the cache's length for prefill and decode.

    Of a prompt that is taken in by pieces, ``chunk`` tokens each (0: all at once), one piece's
    activations are there at a time.

    ``precision`` is one of ``PRECISIONS``; ``fused`` says whether the operators run as the
    library's fused kernels, and if not, ``device_type`` on what PyTorch's run and ``compiled``
    whether torch.compile fuses these; ``optimizer_bytes`` is what the optimizer keeps a parameter
    (None: AdamW's two moments in the weights' dtype); ``rope_shared`` whether one rotary table
    serves all layers; ``workspace_bytes`` what a library keeps for its products; ``attention`` is
    the backend asked for, where it may be one that holds its weights; ``quantized`` what the codes
    of linear layers change, in inference; ``sharding`` what of a training step several ranks share
    out, whose ``batch`` is that of one.
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
            course = [(held, sharding.gradients(made, costs, size)) for held, made in course]
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
            together=max(sum(held) for held in course),
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
    """Bytes of activations and of gradients along the backward pass, from the loss on."""
    tokens, held, beside = how.batch * how.sequence, _unit(costs, size, how), _beside(costs, how)
    unit = tokens * held.kept_per_token + held.kept + beside.kept
    # All that it saved is there still, and the gradient of its result.
    working = tokens * (held.backward_per_token + costs.dim * size.stream) + beside.backward
    stream = tokens * costs.dim * size.stream
    came = -(-stream // costs.stream_ranks)  # what a block that is checkpointed keeps: its input
    passes = costs.block_passes or ((1.0,),) * costs.n_layers
    shares = costs.block_weights or (1 / len(passes),) * len(passes)
    copies = [round(share * _copies(costs, size)) for share in shares]
    again = _checkpointed(checkpointing, len(passes))
    more = [(0.0,) * len(sizes) for sizes in passes]
    if costs.kept_beside is not None:
        more = [tuple(tokens * each for each in block) for block in costs.kept_beside(how)]
    attends = _attends(costs, how)
    past = tokens * costs.saved_past_attention * size.compute
    kept = [
        came if recomputed else round(sum(sizes) * unit + sum(extra)) + copy + _kept(weights)
        for sizes, extra, copy, weights, recomputed in zip(
            passes, more, copies, attends, again, strict=True
        )
    ]
    fixed = how.batch * costs.saved_per_sequence * size.compute
    yield sum(kept) + fixed + costs.adapting_bytes, 0
    yield sum(kept) + fixed + _head_copy(costs, size) + _loss(costs, tokens), 0
    after = costs.dim * costs.rows + costs.linears_after
    gradients = after * size.weight
    for index in reversed(range(len(passes))):
        before, sizes = sum(kept[:index]), passes[index]
        if again[index]:
            before += came
        own = round(shares[index] * _in_blocks(costs) * size.weight)
        for number in reversed(range(len(sizes))):
            saved = round(sum(sizes[: number + 1]) * unit + sum(more[index][: number + 1]))
            saved += copies[index] + _kept(attends[index][: number + 1])
            # Of weights that several passes share, the last one's backward pass makes all.
            made = own if number + 1 < len(sizes) else 0
            part = min(1.0, sizes[number])
            yield before + saved + round(part * working), gradients + made
            # As attention has its own turn, what comes after it is not there yet, or not any more.
            for weights in attends[index][number] if attends[index] else ():
                there = before + saved - round(part * past) - weights.saved
                yield there + weights.forward, (gradients + made) * again[index]
                yield there + weights.backward + round(part * stream), gradients + made
        gradients += own
    yield 0, costs.parameters * size.weight


def _attends(costs: Costs, how: How) -> list[list[list[WeightsMemory]]]:
    """By block and pass, what its attentions hold for their weights."""
    if not costs.attends:
        return [[] for _ in costs.block_passes or range(costs.n_layers)]
    masked = costs.causal or costs.window > 0
    return [
        [[one.weights(how, masked) for one in found] for found in block] for block in costs.attends
    ]


def _kept(passes: Sequence[Sequence[WeightsMemory]]) -> int:
    return sum(weights.saved for found in passes for weights in found)


def _unit(costs: Costs, size: Precision, how: How) -> Held:
    """What a unit block holds, the stream's part included; each family's ``costs`` names it."""
    stream = costs.saved_stream_per_token * size.stream
    if not how.fused and costs.by_torch is not None:
        held = costs.by_torch(how)
        return replace(held, kept_per_token=held.kept_per_token + stream)
    compute, fp32 = costs.saved_per_token, costs.saved_fp32_per_token
    if not how.fused and not how.compiled:
        compute, fp32 = compute + costs.unfused_per_token, fp32 + costs.unfused_fp32_per_token
    return Held(
        kept_per_token=compute * size.compute + stream + fp32 * 4,
        backward_per_token=costs.backward_per_token * size.compute,
    )


def _beside(costs: Costs, how: How) -> Beside:
    return costs.beside(how) if costs.beside else Beside()


def _loss(costs: Costs, tokens: int) -> int:
    """The log-softmax in FP32, and the gradients after and before it, as torch's loss has them."""
    return 3 * 4 * tokens * costs.rows


def _copies(costs: Costs, size: Precision) -> int:
    """Autocast's copies of the blocks' linears, each kept until the linear's backward pass."""
    return _in_blocks(costs) * (size.compute if size.compute != size.weight else 0)


def cached_copies(costs: Costs, precision: str, checkpointing: str) -> tuple[int, int]:
    """Of what ``_copies`` counts, bytes that autocast's cache has: of all blocks, and of those that
    keep it for a backward pass.
    """
    size = PRECISIONS[precision]
    shares = costs.block_weights or (1 / costs.n_layers,) * costs.n_layers
    again = _checkpointed(checkpointing, len(shares))
    whole = _copies(costs, size)
    once = costs.cast_by_operators * size.compute if whole else 0
    each = [max(0, round(share * whole) - once) for share in shares]
    kept = (one for one, recomputed in zip(each, again, strict=True) if not recomputed)
    return sum(each), sum(kept)


def _head_copy(costs: Costs, size: Precision) -> int:
    """The same of the head."""
    return costs.dim * costs.rows * (size.compute if size.compute != size.weight else 0)


def _in_blocks(costs: Costs) -> int:
    """Numbers in the blocks' linears, which are nearly all that blocks have."""
    linears = costs.matmul_per_token if costs.linear_parameters is None else costs.linear_parameters
    return linears - costs.linears_after


def _block(costs: Costs, size: Precision) -> int:
    """Bytes of the largest block's linears."""
    return round(
        max(costs.block_weights or (1 / costs.n_layers,)) * _in_blocks(costs) * size.weight
    )


def _checkpointed(mode: str, count: int) -> list[bool]:
    """Of each block, whether it keeps its input only, as ``Model.choose_checkpointed`` says."""
    # What "operators" keeps is most of a block: estimated as all of it.
    stride = 0 if mode == "operators" else CHECKPOINTING[mode]
    return [stride > 0 and index % stride == 0 for index in range(count)]


def _inference(costs: Costs, size: Precision, how: How, quantized: Saving | None) -> int:
    """One block's temporaries at a time, or the logits; autocast's copies stay, but not of codes,
    which an operator may widen for its product: one layer's, in FP32 and in what it computes.
    """
    decoding, tokens = how.workload in _DECODING, how.batch * how.sequence
    weights = [w.inference for block in _attends(costs, how) for found in block for w in found]
    how = how._replace(weights=max(weights, default=0) // tokens)
    if costs.inference_per_token is None:
        held = _unit(costs, size, how)
        live = tokens * held.kept_per_token + held.kept
    else:
        live = tokens * costs.inference_per_token(how)
    last = tokens * costs.dim * size.stream  # what the blocks give, and normalised
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
    """The decode state of so many sequences."""
    held = sequence * costs.cached_per_token + costs.cached_per_sequence
    held += sum(part.cached_per_token * part.share.slots(sequence) for part in costs.routed)
    return batch * (held * size.compute + costs.cached_fp32_per_sequence * 4) + costs.cached_bytes
