"""What a step of a model holds in memory at most: bytes by role, from the sizes in ``Costs``.

A training step has its peak in its backward pass, whose course ``_training`` follows: where the
loss begins it, and where the backward pass of each block does. From there on the activations of a
block make room for the gradients of its weights, evenly enough that only the ends count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from models._checkpointing import CHECKPOINTING
from models._costs import Costs, Held, Unfused
from models._quantized import Saving


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Estimated bytes by role, each at its own highest point of a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    cache: int  # decode state
    tables: int
    together: int  # activations and gradients where both together are highest

    @property
    def total(self) -> int:
        """At the highest point of the step."""
        return self.weights + self.optimizer + self.cache + self.tables + self.together


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
    rope_tables: int = 1,
    chunk: int = 0,
    quantized: Saving | None = None,
) -> Footprint:
    """Estimated memory of one step; ``sequence`` is the cache's length for prefill and decode.

    Of a prompt that is taken in by pieces, ``chunk`` tokens each (0: all at once), one piece's
    activations are there at a time.

    ``precision`` is one of ``PRECISIONS``; ``fused`` says whether the operators run as the
    library's fused kernels, and if not, ``device_type`` on what PyTorch's run and ``compiled``
    whether torch.compile fuses these; ``optimizer_bytes`` is what the optimizer keeps a parameter
    (None: AdamW's two moments in the weights' dtype); ``rope_tables`` is how many copies of the
    rotary tables exist; ``quantized`` what the codes of linear layers change, in inference.
    """
    size = PRECISIONS[precision]
    unit = _unit(costs, size, fused, compiled, device_type)
    weights = costs.parameters * size.weight
    tables = costs.tables_bytes * rope_tables
    if workload == "train":
        moments = 2 * size.weight if optimizer_bytes is None else optimizer_bytes
        course = list(_training(costs, size, unit, batch, sequence, checkpointing, fused))
        return Footprint(
            weights=weights,
            gradients=weights,
            optimizer=costs.parameters * moments,
            activations=max(activations for activations, _ in course),
            cache=0,
            tables=tables,
            together=max(sum(held) for held in course),
        )
    taken = sequence
    if workload == "decode":  # one token of each sequence
        taken = 1
    elif workload in _DECODING and chunk:
        taken = min(chunk, sequence)
    activations = _inference(costs, size, unit, workload, batch, taken, quantized)
    if quantized is not None:
        weights += quantized.numbers * (1 - size.weight) + quantized.scale_bytes
    return Footprint(
        weights=weights,
        gradients=0,
        optimizer=0,
        activations=activations,
        cache=_cache(costs, size, batch, sequence) if workload in _DECODING else 0,
        tables=tables,
        together=activations,
    )


_DECODING = ("prefill", "decode", "generate")


def _training(
    costs: Costs,
    size: Precision,
    held: Held,
    batch: int,
    sequence: int,
    checkpointing: str,
    fused: bool,
) -> Iterator[tuple[int, int]]:
    """Bytes of activations and of gradients along the backward pass, from the loss on."""
    tokens = batch * sequence
    scan = costs.scan_bytes(batch, sequence, size.compute) if costs.scan_bytes and fused else (0, 0)
    unit = tokens * held.kept_per_token + held.kept + scan[0]
    # All that it saved is there still, and the gradient of its result.
    working = tokens * (held.backward_per_token + costs.dim * size.stream) + scan[1]
    stream = tokens * costs.dim * size.stream  # what a block that is checkpointed keeps: its input
    passes = costs.block_passes or ((1.0,),) * costs.n_layers
    shares = costs.block_weights or (1 / len(passes),) * len(passes)
    copies = [round(share * _copies(costs, size)) for share in shares]
    again = _checkpointed(checkpointing, len(passes))
    beside = costs.block_saved_per_token or (0,) * len(passes)
    more = [numbers * tokens * size.compute for numbers in beside]
    kept = [
        stream if recomputed else round(sum(sizes) * unit) + own + copy
        for sizes, own, copy, recomputed in zip(passes, more, copies, again, strict=True)
    ]
    fixed = batch * costs.saved_per_sequence * size.compute
    yield sum(kept) + fixed + _head_copy(costs, size) + _loss(costs, tokens), 0
    after = costs.dim * costs.rows + costs.linears_after
    gradients = after * size.weight
    for index in reversed(range(len(passes))):
        before, sizes = sum(kept[:index]), passes[index]
        if again[index]:
            before += stream
        own = round(shares[index] * _in_blocks(costs) * size.weight)
        for number in reversed(range(len(sizes))):
            saved = round(sum(sizes[: number + 1]) * unit) + more[index] + copies[index]
            # Of weights that several passes share, the last one's backward pass makes all.
            made = own if number + 1 < len(sizes) else 0
            yield before + saved + round(min(1.0, sizes[number]) * working), gradients + made
        gradients += own
    yield 0, costs.parameters * size.weight


def _unit(costs: Costs, size: Precision, fused: bool, compiled: bool, device_type: str) -> Held:
    """What a unit block holds, the stream's part included; each family's ``costs`` names it."""
    stream = costs.saved_stream_per_token * size.stream
    if not fused and costs.by_torch is not None:
        held = costs.by_torch(Unfused(size.compute, size.stream, device_type, compiled))
        return replace(held, kept_per_token=held.kept_per_token + stream)
    compute, fp32 = costs.saved_per_token, costs.saved_fp32_per_token
    if not fused and not compiled:
        compute, fp32 = compute + costs.unfused_per_token, fp32 + costs.unfused_fp32_per_token
    return Held(
        kept_per_token=compute * size.compute + stream + fp32 * 4,
        backward_per_token=costs.backward_per_token * size.compute,
    )


def _loss(costs: Costs, tokens: int) -> int:
    """The log-softmax in FP32, and the gradients after and before it, as torch's loss has them."""
    return 3 * 4 * tokens * costs.rows


def _copies(costs: Costs, size: Precision) -> int:
    """Autocast's copies of the blocks' linears, each kept until the linear's backward pass."""
    return _in_blocks(costs) * (size.compute if size.compute != size.weight else 0)


def _head_copy(costs: Costs, size: Precision) -> int:
    """The same of the head."""
    return costs.dim * costs.rows * (size.compute if size.compute != size.weight else 0)


def _in_blocks(costs: Costs) -> int:
    """Numbers in the blocks' linears, which are nearly all that blocks have."""
    linears = costs.matmul_per_token if costs.linear_parameters is None else costs.linear_parameters
    return linears - costs.linears_after


def _checkpointed(mode: str, count: int) -> list[bool]:
    """Of each block, whether it keeps its input only, as ``Model.choose_checkpointed`` says."""
    # What "operators" keeps is most of a block: estimated as all of it.
    stride = 0 if mode == "operators" else CHECKPOINTING[mode]
    return [stride > 0 and index % stride == 0 for index in range(count)]


def _inference(
    costs: Costs,
    size: Precision,
    held: Held,
    workload: str,
    batch: int,
    sequence: int,
    quantized: Saving | None,
) -> int:
    """One block's temporaries at a time, or the logits; autocast's copies stay, but not of codes,
    which an operator may widen for its product: one layer's, in FP32 and in what it computes.
    """
    decoding = workload in _DECODING
    live = batch * sequence * held.kept_per_token + held.kept
    logits = batch * (1 if decoding else sequence) * costs.rows * size.compute
    beside = batch * costs.saved_per_sequence * size.compute
    copies = _copies(costs, size)
    if quantized is not None:
        copies = max(0, copies - quantized.numbers * size.compute)
        live += quantized.widened * (4 + (size.compute if size.compute < 4 else 0))
    return max(live, logits, beside) + copies + _head_copy(costs, size)


def _cache(costs: Costs, size: Precision, batch: int, sequence: int) -> int:
    """The decode state of so many sequences."""
    held = sequence * costs.cached_per_token + costs.cached_per_sequence
    held += sum(part.cached_per_token * part.share.slots(sequence) for part in costs.routed)
    return batch * (held * size.compute + costs.cached_fp32_per_sequence * 4) + costs.cached_bytes
