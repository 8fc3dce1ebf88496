"""Copies of tensors from which their values are restored."""

from __future__ import annotations

from torch import Tensor

ROOM = 4  # times the bytes of a copy must be free for it on the device


class Backups:
    """Copies of tensors: on their device while it has room, else on the host, which is slower.

    A copy of a model to the host and back takes seconds for each gigabyte.
    """

    def __init__(self, free_bytes: int) -> None:
        self._free_bytes = free_bytes

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy without history."""
        if tensor.device.type != "cpu" and ROOM * tensor.nbytes >= self._free_bytes:
            return tensor.detach().to("cpu", copy=True)
        self._free_bytes -= tensor.nbytes
        return tensor.detach().clone()
