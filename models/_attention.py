"""Causal attention with grouped key/value heads, its rotary tables, and its decode state.

Grouped queries: arXiv 2305.13245; rotary positions: arXiv 2104.09864.

Shapes: B batch, S new tokens, T cache length, E model width, H query heads, G key/value heads,
X = H + 2 G, D head width, R = D / 2 rotated pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from kernels.rope import table
from models._layers import INIT_STD, Linear


class RotaryCache(nn.Module):
    """The cosines and sines of every position, in FP32; several layers may hold the same one.

    They are a function of three numbers, so they are no part of the weights (not in the state
    dict) and are computed anew wherever the module goes: from the meta device, to another device,
    and after a cast, which therefore never costs them their precision.
    """

    def __init__(self, head_dim: int, max_sequence: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.max_sequence, self.theta = head_dim, max_sequence, theta
        self.cos_SR: Tensor
        self.sin_SR: Tensor
        self.rebuild_buffers(torch.empty(0).device)

    def rebuild_buffers(self, device: torch.device) -> None:
        """Compute the tables on ``device``."""
        if device.type == "meta":  # there, the power in ``table`` would import Dynamo: 5 s
            shape = (self.max_sequence, self.head_dim // 2)
            cos_SR, sin_SR = torch.empty(2, *shape, device=device).unbind()
        else:
            cos_SR, sin_SR = table(self.max_sequence, self.head_dim, device, self.theta)
        self.register_buffer("cos_SR", cos_SR, persistent=False)
        self.register_buffer("sin_SR", sin_SR, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryCache:
        super()._apply(fn, recurse)
        self.rebuild_buffers(self.cos_SR.device)
        return self


@dataclass
class KVState:
    """Keys and values of one layer for up to T positions, both (B, G, T, D)."""

    keys: Tensor
    values: Tensor

    def tensors(self) -> list[Tensor]:
        """What is held, for counting bytes and resetting."""
        return [self.keys, self.values]

    def write(self, k_BGSD: Tensor, v_BGSD: Tensor, position: Tensor | None) -> None:
        """Put S positions in place, the first at ``position`` (int64 [] on the device) or 0."""
        if k_BGSD.dtype != self.keys.dtype:
            raise ValueError(
                f"the cache holds {self.keys.dtype} and the layer computed {k_BGSD.dtype}; "
                "make the cache under the same autocast as the calls that use it"
            )
        n_new = k_BGSD.shape[2]
        if position is None:
            self.keys[:, :, :n_new].copy_(k_BGSD)
            self.values[:, :, :n_new].copy_(v_BGSD)
        else:
            rows_S = position + torch.arange(n_new, device=position.device)
            self.keys.index_copy_(2, rows_S, k_BGSD)
            self.values.index_copy_(2, rows_S, v_BGSD)


class Attention(nn.Module):
    """Causal self-attention, (B, S, E) -> (B, S, E), H query heads over G key/value heads.

    Without ``rotary`` it knows of no positions but by the causal mask. One linear makes queries,
    keys and values: under autocast its input is cast once.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        rotary: RotaryCache | None,
        std_out: float = INIT_STD,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.qkv = Linear(dim, (n_heads + 2 * n_kv_heads) * self.head_dim)
        self.out = Linear(n_heads * self.head_dim, dim, std_out)
        self.rotary = rotary

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> KVState:
        """An empty state for ``length`` positions."""
        shape = (batch, self.n_kv_heads, length, self.head_dim)
        return KVState(*(torch.zeros(shape, device=device, dtype=dtype) for _ in range(2)))

    def forward(
        self, x_BSE: Tensor, state: KVState | None = None, position: Tensor | None = None
    ) -> Tensor:
        """Attend to the past: this call's tokens, and with ``state`` those before ``position``.

        ``position`` None with a state means that the state is empty: the tokens see each other
        only, so the causal kernel runs without looking at the cache.
        """
        q_BHSD, k_BGSD, v_BGSD = self.heads(x_BSE, position)
        if state is not None:
            state.write(k_BGSD, v_BGSD, position)
        if state is None or position is None:
            y_BHSD = kernels.attention(q_BHSD, k_BGSD, v_BGSD, causal=True)
        else:
            kv_length = position + x_BSE.shape[1]
            y_BHSD = kernels.attention(
                q_BHSD, state.keys, state.values, causal=True, kv_length=kv_length
            )
        return self.out(y_BHSD.transpose(1, 2).flatten(2))

    def heads(self, x_BSE: Tensor, position: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, S, D), keys and values (B, G, S, D); the first token at ``position``."""
        heads, groups = self.n_heads, self.n_kv_heads
        qkv_BSXD = self.qkv(x_BSE).unflatten(-1, (heads + 2 * groups, self.head_dim))
        q_BSHD, k_BSGD, v_BSGD = qkv_BSXD.split((heads, groups, groups), dim=2)
        if torch.is_grad_enabled():
            # Backward needs the values, and a view of them would keep all of qkv until then.
            v_BSGD = v_BSGD.contiguous()
        q_BHSD, k_BGSD, v_BGSD = (x.transpose(1, 2) for x in (q_BSHD, k_BSGD, v_BSGD))
        if (rotary := self.rotary) is not None:
            offset = 0 if position is None else position
            q_BHSD, k_BGSD = kernels.rope(
                q_BHSD, k_BGSD, rotary.cos_SR, rotary.sin_SR, offset=offset
            )
        return q_BHSD, k_BGSD, v_BGSD
