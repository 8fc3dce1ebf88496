"""Memory that is allocated once and written to again by every call that asks for as much."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Workspace:
    """Tensors by role, each in memory for the largest that was asked for in this role yet.

    What is taken holds whatever was there, and only until the same role is taken again: nothing
    that a backward pass needs may lie here. ``taken`` counts requests, ``made`` allocations.
    """

    def __init__(self) -> None:
        # What was outgrown is kept: a captured graph may still write to it.
        self._flat: dict[tuple[str, torch.dtype, torch.device], list[Tensor]] = {}
        self.taken = self.made = 0

    @property
    def bytes(self) -> int:
        """All that was allocated."""
        return sum(flat.nbytes for kept in self._flat.values() for flat in kept)

    def take(
        self, role: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A contiguous tensor of this shape, of unknown content."""
        count, inference = math.prod(shape), torch.is_inference_mode_enabled()
        self.taken += 1
        kept = self._flat.setdefault((role, dtype, device), [])
        for flat in kept:
            # What was made in inference mode cannot be written to outside of it.
            if flat.numel() >= count and (inference or not flat.is_inference()):
                break
        else:
            flat = torch.empty(count, dtype=dtype, device=device)
            kept.append(flat)
            self.made += 1
        return flat[:count].view(shape)


def room(
    workspace: Workspace | None,
    role: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """A tensor of unknown content and some dimensions, in the workspace if there is one."""
    if workspace is None:
        return torch.empty(*shape, dtype=dtype, device=device)
    return workspace.take(role, shape, dtype, device)
