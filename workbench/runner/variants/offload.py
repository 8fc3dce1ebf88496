"""Offloads the activations for the backward pass to host memory, and copies them back on demand.

Autograd's hooks pass each saved tensor. The copies are queued on the compute stream, from and to
pinned memory: no step waits for the host, and copies do not overlap with computation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

LEAST_BYTES = 1 << 16  # smaller tensors stay on the device: a copy costs more than it saves


class Offload:
    """``compute`` with its saved activations on the host.

    ``moved_bytes`` and ``moved_tensors`` count the copies of the last call. Weights are not copied,
    nor are tensors below ``least_bytes`` or with gaps in memory. A tensor that is saved several
    times is copied once.
    """

    def __init__(
        self,
        compute: Callable[..., Tensor],
        weights: Iterable[Tensor],
        least_bytes: int = LEAST_BYTES,
    ) -> None:
        self._compute = compute
        self._weights = list(weights)
        self._addresses: set[int] = set()  # addresses of the weights in the current call
        self._least_bytes = least_bytes
        self._moved: dict[tuple[object, ...], tuple[StorageWeakRef, weakref.ref[_HostTensor]]] = {}
        self.moved_bytes = 0
        self.moved_tensors = 0
        self.left_bytes = 0  # bytes of saved tensors that were not copied

    def __call__(self, *batch: Tensor) -> Tensor:
        """Return what ``compute`` returns."""
        self._moved.clear()
        self._addresses = {weight.untyped_storage().data_ptr() for weight in self._weights}
        self.moved_bytes = self.moved_tensors = self.left_bytes = 0
        with saved_tensors_hooks(self._pack, _unpack):
            return self._compute(*batch)

    def _pack(self, tensor: Tensor) -> Tensor | _HostTensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._addresses:
            return tensor
        # A compiled backward pass relies on strides, which a copy keeps only if there are no gaps.
        if tensor.nbytes < self._least_bytes or not _is_dense(tensor):
            self.left_bytes += tensor.nbytes
            return tensor.detach()  # an output that an operator saves itself would never be freed
        # The weak reference detects a new storage at the address of a freed one.
        reference = StorageWeakRef(storage)
        view = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        key = (reference.cdata, tensor._version, *view)
        if key in self._moved:
            earlier, stored_reference = self._moved[key]
            if not earlier.expired() and (stored := stored_reference()) is not None:
                return stored
        moved = _HostTensor(tensor)
        self._moved[key] = reference, weakref.ref(moved)
        self.moved_bytes += tensor.nbytes
        self.moved_tensors += 1
        return moved


class _HostTensor:
    """A copy of a tensor on the host."""

    def __init__(self, tensor: Tensor) -> None:
        pinned = tensor.is_cuda
        self._device = tensor.device
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)
        self._host.copy_(tensor.detach(), non_blocking=pinned)
        self._fetched: weakref.ref[Tensor] | None = None

    def fetch(self) -> Tensor:
        """Return the tensor on its device; the same object while it is referenced."""
        fetched = self._fetched() if self._fetched is not None else None
        if fetched is None:
            fetched = self._host.to(self._device, non_blocking=True, copy=True)
            self._fetched = weakref.ref(fetched)
        return fetched


def _is_dense(tensor: Tensor) -> bool:
    """Return True if a tensor has no gaps in memory; its axes may be in any order."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _unpack(saved: Tensor | _HostTensor) -> Tensor:
    return saved.fetch() if isinstance(saved, _HostTensor) else saved
