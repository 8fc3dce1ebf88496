"""The scan in plain torch with all chunks at once, as a user would write and compile it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.core.operator import accumulator, running_sum, without_autocast

CHUNK = 256  # tokens: the default of the authors' library


def step_sizes(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, wide: torch.dtype) -> Tensor:
    """Return dt with its bias, through softplus."""
    dt = dt.to(wide)
    if dt_bias is not None:
        dt = dt + dt_bias.to(wide)
    return torch.nn.functional.softplus(dt) if dt_softplus else dt


def all_chunks(
    x_BLHP: Tensor,
    dt_BLH: Tensor,
    A_H: Tensor,
    B_BLGN: Tensor,
    C_BLGN: Tensor,
    D_H: Tensor | None = None,
    dt_bias_H: Tensor | None = None,
    initial_state_BHPN: Tensor | None = None,
    dt_softplus: bool = True,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute what ``ssd_scan.reference`` does, with a loop only over the states of chunks.

    Follows the listing of Dao and Gu, "Transformers are SSMs", 2024 (arXiv 2405.21060), section 6:
    outputs within each of the Z chunks, the state that each chunk makes, and the effect of earlier
    states on each chunk. Heads are [G, R], with R heads in a group.
    """
    batch, length, heads, _ = x_BLHP.shape
    narrow, wide = x_BLHP.dtype, accumulator(x_BLHP.dtype)
    groups = B_BLGN.shape[2]
    per_group = (groups, heads // groups)
    size = chunk or CHUNK

    def in_chunks(t: Tensor) -> Tensor:
        padding = (0, 0) * (t.dim() - 2) + (0, -length % size)
        return torch.nn.functional.pad(t, padding).unflatten(1, (-1, size))

    with without_autocast(x_BLHP):
        dt = step_sizes(dt_BLH, dt_bias_H, dt_softplus, wide)
        x, dt, b, c = (in_chunks(t) for t in (x_BLHP, dt, B_BLGN, C_BLGN))
        x, dt = x.unflatten(3, per_group), dt.unflatten(3, per_group)
        falls = dt.double() * A_H.double().view(per_group)
        a = running_sum(falls.flatten(0, 1)).unflatten(0, (batch, -1))
        later = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(1)[..., None, None]
        gaps = (a[:, :, :, None] - a[:, :, None]).to(wide).masked_fill(later, -torch.inf)
        scores = torch.einsum("bztgn,bzsgn->bztsg", c, b)[..., None]
        weights = (scores * gaps.exp() * dt[:, :, None]).to(narrow)
        y = torch.einsum("bztsgr,bzsgrp->bztgrp", weights, x).to(wide)

        left = (dt * (a[:, :, -1:] - a).to(wide).exp())[..., None]
        states = torch.einsum("bzsgrp,bzsgn->bzgrpn", (x * left).to(narrow), b).to(wide)
        if initial_state_BHPN is None:
            state = torch.zeros_like(states[:, 0])
        else:
            state = initial_state_BHPN.to(wide).unflatten(1, per_group)
        decays, earlier = a[:, :, -1].to(wide).exp()[..., None, None], []
        for number in range(states.shape[1]):
            earlier.append(state)
            state = state * decays[:, number] + states[:, number]
        start = torch.stack(earlier, 1).to(narrow)
        before = torch.einsum("bztgn,bzgrpn->bztgrp", c, start)
        y = (y + before * a.to(wide).exp()[..., None]).flatten(3, 4).flatten(1, 2)[:, :length]
        if D_H is not None:
            y = y + x_BLHP * D_H.to(wide)[:, None]
    return y.to(narrow), state.flatten(1, 2)
