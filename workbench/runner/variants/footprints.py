"""The memory of configurations that are kept ready beside the one that steps.

Built arms stay, and so do the weights that they are around. The allocator counts all of it, whoever
steps: an arm of 8-bit codes beside a plain one seems to save nothing. Tensors that somebody owns by
name can be told apart: weights and codes, gradients and moments, buffers, batches, decode states.
What compiled code and captured graphs of others keep for themselves cannot, and counts as the
arm's own; an arm that was built alone has none of it beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Arm
    from workbench.runner.variants.weights import WeightSets


def others_bytes(arm: Arm, arms: Iterable[Arm], sets: WeightSets) -> int:
    """Return bytes on the arm's device that only other arms, or sets of weights, hold."""
    device = arm.situation.device.type
    own = _storages(_held(arm), device)
    everything = _storages(sets.tensors(), device)
    for other in arms:
        everything |= _storages(_held(other), device)
    return sum(size for address, size in everything.items() if address not in own)


def _held(arm: Arm) -> Iterator[Tensor]:
    """Yield the tensors that an arm computes with, those that it shares among them."""
    yield from arm.weights.tensors()
    if arm.trainer is not None:
        yield from arm.trainer.tensors()
    yield from arm.model.buffers()
    yield from arm.batches.tensors()
    if arm.decoder is not None:
        yield from arm.decoder.cache.tensors()
        yield from arm.decoder.progress.values()


def _storages(tensors: Iterable[Tensor], device: str) -> dict[int, int]:
    """Return bytes by address, each once however many tensors look at them."""
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device.type == device)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
