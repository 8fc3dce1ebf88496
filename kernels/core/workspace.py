"""Memory that is allocated once and reused by every call that needs as much."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Workspace:
    """Scratch buffers by role; each grows to the largest size requested.

    A buffer holds arbitrary values, and only until the same role is requested again: nothing that a
    backward pass needs may be in it. ``requests`` counts the calls of ``empty``,
    ``allocations`` those that allocated memory.
    """

    def __init__(self) -> None:
        # Outgrown buffers stay allocated: a captured graph may still write to them.
        self._flat: dict[tuple[str, torch.dtype, torch.device], list[Tensor]] = {}
        self.requests = self.allocations = 0

    @property
    def bytes(self) -> int:
        """Bytes of all allocations."""
        return sum(flat.nbytes for buffers in self._flat.values() for flat in buffers)

    def empty(
        self, role: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return a contiguous tensor of this shape, of unknown content."""
        count, inference = math.prod(shape), torch.is_inference_mode_enabled()
        self.requests += 1
        buffers = self._flat.setdefault((role, dtype, device), [])
        for flat in buffers:
            # A tensor made in inference mode cannot be written to outside of it.
            if flat.numel() >= count and (inference or not flat.is_inference()):
                break
        else:
            flat = torch.empty(count, dtype=dtype, device=device)
            buffers.append(flat)
            self.allocations += 1
        return flat[:count].view(shape)


def scratch(
    workspace: Workspace | None,
    role: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return a tensor of unknown content, in the workspace if there is one."""
    if workspace is None:
        return torch.empty(*shape, dtype=dtype, device=device)
    return workspace.empty(role, shape, dtype, device)
