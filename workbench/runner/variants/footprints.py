"""The memory of configurations that are kept ready beside the one that steps.

Built variants stay in memory, and so do their weights. The allocator counts all of them, whichever
variant steps: a variant with 8-bit weights beside a plain one seems to save nothing. Tensors with a
known owner can be attributed: weights, quantized weights, gradients, moments, buffers, batches,
decode states. Memory that compiled code and captured graphs of other variants keep cannot, and
counts as the variant's own; a variant that was built alone has none of it beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Variant
    from workbench.runner.variants.weights import WeightSets


def others_bytes(variant: Variant, variants: Iterable[Variant], weight_sets: WeightSets) -> int:
    """Return bytes on the variant's device that it does not use: of other variants and weights."""
    device = variant.situation.device.type
    own_storages = _storages(_tensors_of(variant), device)
    everything = _storages(weight_sets.tensors(), device)
    for other in variants:
        everything |= _storages(_tensors_of(other), device)
    return sum(size for address, size in everything.items() if address not in own_storages)


def _tensors_of(variant: Variant) -> Iterator[Tensor]:
    """Yield the tensors that a variant computes with, including shared ones."""
    yield from variant.weights.tensors()
    if variant.trainer is not None:
        yield from variant.trainer.tensors()
    if variant.divided is not None and variant.divided.replicate is not None:
        yield from variant.divided.replicate.tensors()
    yield from variant.model.buffers()
    yield from variant.batches.tensors()
    if variant.decoder is not None:
        yield from variant.decoder.cache.tensors()
        yield from variant.decoder.progress.values()


def _storages(tensors: Iterable[Tensor], device: str) -> dict[int, int]:
    """Return the bytes of each storage by its address; tensors may share a storage."""
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device.type == device)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
