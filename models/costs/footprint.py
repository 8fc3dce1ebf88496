"""Peak memory of a step of a model: bytes by role, from the sizes in ``Costs``.

``training_memory`` follows a training step; any other step is one block at a time, or the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from models.costs.model_costs import Costs, How
from models.costs.precision import PRECISIONS, Precision
from models.costs.training_memory import (
    attention_weights,
    offloaded_course,
    training_course,
    unit_memory,
)
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
    workspaces: int  # workspaces of libraries for matrix products
    together: int  # activations and gradients at their joint peak
    saved: int = 0  # those of the activations that autograd saves in the forward pass

    @property
    def total(self) -> int:
        """Bytes at the peak of the step."""
        lasting = self.weights + self.optimizer + self.cache + self.tables + self.workspaces
        return lasting + self.together


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """State that ranks shard: moments and gradients, and weights between steps.

    ``shares_weights``: gathered weights of a block are released after it has computed.
    ``offloads``: the shards are in the host's memory.
    """

    ranks: int
    shares_weights: bool
    offloads: bool = False

    def gradients(self, computed_bytes: int, costs: Costs, size: Precision) -> int:
        """Return the bytes of gradients when the backward pass has computed ``computed_bytes``.

        That is this rank's shard of them, and besides it those that are being reduced and their
        copy.
        """
        share = 0 if self.offloads else -(-computed_bytes // self.ranks)
        largest = max(_block(costs, size), costs.head * size.weight)
        return share + min(computed_bytes, 2 * largest)

    def weights(self, costs: Costs, size: Precision) -> int:
        """Return the bytes of weights: the shard, and gathered ones beside it.

        These are all of them, or with ``shares_weights`` those outside of blocks and of two blocks.
        """
        full = costs.parameters * size.weight
        share = 0 if self.offloads else -(-full // self.ranks)
        if not self.shares_weights:
            return share + full
        outside = full - costs.linears_in_blocks * size.weight
        return share + outside + 2 * _block(costs, size)


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
    optimizer_bytes: float | None = None,
    update: str = "fused",
    rope_shared: bool = False,
    workspace_bytes: int = 0,
    chunk: int = 0,
    attention: str = "",
    loss: str = "",
    rounded: bool = False,
    quantized: Saving | None = None,
    sharding: Sharding | None = None,
    gathered: tuple[int, ...] = (),
    keys: int = 0,
    accumulates: bool = False,
    offloaded: bool = False,
) -> Footprint:
    """Estimate the memory of one step; ``sequence`` is the cache's length for prefill and decode.

    A prompt may be processed in pieces of ``chunk`` tokens (0: all at once); only one piece's
    activations exist at a time.

    ``precision`` is one of ``PRECISIONS``. ``fused``: the operators run as the library's fused
    kernels; otherwise PyTorch's run on ``device_type``, and ``compiled`` tells whether
    torch.compile fuses them. ``optimizer_bytes``: bytes of the optimizer per parameter (None:
    AdamW's two moments in the weights' dtype). ``update``: how AdamW updates the weights: ``loop``,
    ``foreach`` or ``fused``. ``rope_shared``: one rotary table serves all layers.
    ``workspace_bytes``: memory of libraries for their products. ``attention``: the requested
    backend, if it may hold its weights. ``loss``: how a training step computes its loss without all
    logits; empty: with them. ``rounded``: linears multiply by rounded copies of their weights.
    ``quantized``: what quantized linear layers change, in inference.
    ``sharding``: what several ranks shard in a training step, whose ``batch`` is that of one rank.
    If ranks split sequences, ``sequence`` is that of one rank, ``keys`` the number of tokens that
    attention gathers, and ``gathered`` the bytes by block that are saved besides. ``accumulates``:
    as of ``training_course``. ``offloaded``: the host has what autograd saves.
    """
    size = PRECISIONS[precision]
    if gathered:
        costs = replace(costs, gathered=gathered)
    computing = size.compute, size.stream, device_type, fused, compiled
    step = How(workload, batch, sequence, *computing, attention, keys, loss=loss, rounded=rounded)
    if costs.attention is not None:
        step = step._replace(attention=costs.attention(step))
    weights = costs.parameters * size.weight
    rotating = costs.n_layers if costs.rotating is None else costs.rotating
    copies = min(1, rotating) if rope_shared else rotating
    tables = costs.table_bytes * copies + costs.state_bytes
    if workload == "train":
        moments = 2 * size.weight if optimizer_bytes is None else optimizer_bytes
        if offloaded:
            course = list(offloaded_course(costs, size, step, checkpointing))
        else:
            course = list(training_course(costs, size, step, checkpointing, accumulates))
        gradients, optimizer = weights, round(costs.parameters * moments)
        temporary = _temporaries(costs, update) * size.weight
        if sharding is not None:
            course = [
                (saved, sharding.gradients(computed_bytes, costs, size))
                for saved, computed_bytes in course
            ]
            gradients = max(gradient_bytes for _, gradient_bytes in course)
            weights = sharding.weights(costs, size)
            optimizer = 0 if sharding.offloads else -(-optimizer // sharding.ranks)
            temporary = 0 if sharding.offloads else -(-temporary // sharding.ranks)
        return Footprint(
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            activations=max(activations for activations, _ in course),
            saved=course[0][0],
            cache=0,
            tables=tables,
            workspaces=workspace_bytes,
            together=max(*map(sum, course), course[-1][1] + temporary),
        )
    taken = sequence
    if workload == "decode":  # one token of each sequence
        taken = 1
    elif workload in _DECODING and chunk:
        taken = min(chunk, sequence)
    step = step._replace(sequence=taken, keys=sequence if taken < sequence else 0)
    activations = _inference(costs, size, step, quantized)
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


def _temporaries(costs: Costs, update: str) -> int:
    """Return the peak count of temporary numbers in AdamW's update.

    These are roots of the second moments and their divisors: of one parameter after another, or the
    roots of all at once.
    """
    if update == "foreach":
        return costs.parameters
    return 2 * costs.largest_weight if update == "loop" else 0


def _block(costs: Costs, size: Precision) -> int:
    """Return the bytes of the largest block's linears."""
    return round(max(costs.weights_by_block) * costs.linears_in_blocks * size.weight)


def _inference(costs: Costs, size: Precision, step: How, quantized: Saving | None) -> int:
    """Return the bytes of one block's temporaries at a time, or of the logits.

    Autocast's copies stay; quantized weights have none. An operator may dequantize a weight for its
    product: that of one layer, in FP32 and in its result's dtype.
    """
    decoding, tokens = step.workload in _DECODING, step.batch * step.sequence
    weights = [
        w.inference for block in attention_weights(costs, step) for passed in block for w in passed
    ]
    step = step._replace(weights=max(weights, default=0) // tokens)
    if costs.inference_per_token is None:
        unit = unit_memory(costs, size, step)
        live = tokens * unit.kept_per_token + unit.saved
    else:
        live = tokens * costs.inference_per_token(step)
    last = tokens * costs.dim * size.stream  # the blocks' result, and normalised
    logits = step.batch * (1 if decoding else step.sequence) * costs.rows * size.compute + 2 * last
    per_sequence = step.batch * costs.saved_per_sequence * size.compute
    adapting = 0 if decoding else last + costs.adapting_bytes
    operator_casts = costs.cast_by_operators * size.copied
    copies = costs.linears_in_blocks * size.copied - costs.n_layers * operator_casts
    live += operator_casts
    if quantized is not None:
        copies = max(0, copies - quantized.numbers * size.compute)
        live += quantized.widened * (4 + (size.compute if size.compute < 4 else 0))
    return copies + max(live, logits + costs.head * size.copied, per_sequence, adapting)


def _cache(costs: Costs, size: Precision, batch: int, sequence: int) -> int:
    """Return the bytes of the decode state of so many sequences."""
    numbers = sequence * costs.cached_per_token + costs.cached_per_sequence
    numbers += sum(part.cached_per_token * part.share.slots(sequence) for part in costs.routed)
    return (
        batch * (numbers * size.compute + costs.cached_fp32_per_sequence * 4) + costs.cached_bytes
    )
