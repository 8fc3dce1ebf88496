"""Compressed convolutional grouped-query attention: attention inside a narrow latent.

Figliolia et al. 2025, "Compressed Convolutional Attention" (arXiv 2510.04476), appendix A. Queries
have E / C1 columns, keys and values E / C2, and nothing is widened before the attention:

1. ``qk = W_qk x``, split into the heads of queries and of keys, all D columns wide.
2. Two causal convolutions of width W, one after the other, on queries and keys: one per column over
   the sequence, then one that also mixes the columns of a head. Both see zeros before the sequence,
   added once.
3. With m = (q + k of its group) / 2 from *before* the convolutions: q += m, k += the mean of m over
   the group's queries.
4. Half of the value heads are ``W_v1 x_t``, the others ``W_v2 x_(t - 1)``, zeros at t = 0.
5. ``q = q sqrt(D) / |q|``, ``k = k sqrt(D) / |k| exp(temperature)``, a temperature per key head.
6. Rotary positions, attention at scale 1 / sqrt(D), and ``W_o`` back to E columns.

|q| / sqrt(D) is the root mean square, so step 5 is kernels.qk_norm_rope with gains of one; the
temperature commutes with the rotation. The convolutions and the value shift look back on the
previous tokens among those that this attention sees; these are part of the decode state.

Shapes: B batch, S tokens, E model width, H query heads, G key/value heads, X = H + G, D head width,
W convolution width, L = 2 (W - 1) rows that the convolutions look back.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

import kernels
from models.initialisation import Sparing
from models.layers.attention import KVState, RotaryCache, SharedKV, attend, turned
from models.layers.basic import INIT_STD, Linear
from models.layers.routing import Rows
from models.parallel.context_parallel import FULL, Context, SavedBeside
from models.parallel.tensor_parallel_plan import WHOLE, Cut, Division, Region


@dataclass
class CCGQAState:
    """Keys and values, the last rows before the convolutions, and the last late half of values."""

    kv: KVState
    halo: Tensor  # (B, L, M), M = X D columns
    late: Tensor  # (B, 1, N), N = G D / 2 columns: W_v2 x of the last token

    def tensors(self) -> list[Tensor]:
        """Return all tensors, for counting bytes and resetting."""
        return [*self.kv.tensors(), self.halo, self.late]

    def carried(self) -> list[Tensor]:
        """Return the tensors that cannot go back to a position."""
        return [self.halo, self.late]


class CCGQA(Sparing):
    """Compressed attention, (B, S, E) -> (B, S, E); see the module."""

    spared = ("temperature",)

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        conv_width: int,
        rotary: RotaryCache,
        norm_eps: float,
        std_out: float = INIT_STD,
        window: int = 0,
    ) -> None:
        super().__init__()
        self.window = window
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.conv_width, self.norm_eps, self.rotary = conv_width, norm_eps, rotary
        n_all = n_heads + n_kv_heads
        self.qk = Linear(dim, n_all * head_dim)
        self.v = Linear(dim, n_kv_heads * head_dim)
        self.out = Linear(n_heads * head_dim, dim, std_out)
        self.column_weight = nn.Parameter(torch.empty(n_all * head_dim, conv_width))
        self.column_bias = nn.Parameter(torch.empty(n_all * head_dim))
        self.head_weight = nn.Parameter(torch.empty(n_all, conv_width * head_dim, head_dim))
        self.head_bias = nn.Parameter(torch.empty(n_all, head_dim))
        self.temperature = nn.Parameter(torch.empty(n_kv_heads))
        self.region: Region = WHOLE
        self.context: Context = FULL

    @property
    def beside_split(self) -> SavedBeside:
        """Numbers saved where ranks split the sequence: keys and values of the other ranks."""
        return SavedBeside(gathered=2 * self.n_kv_heads * self.head_dim)

    @property
    def rows_before(self) -> int:
        """Number of tokens that the convolutions look back."""
        return 2 * (self.conv_width - 1)

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw the initial value of parameter ``name``, in FP32 on the CPU.

        Convolutions start as in torch, U(-b, b) with b = 1 / sqrt(number of terms in a sum).
        """
        if name.endswith("temperature"):
            return torch.zeros(shape)
        summed = self.conv_width * (self.head_dim if "head" in name.rpartition(".")[2] else 1)
        bound = 1 / math.sqrt(summed)
        return torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)

    def division(self) -> Division:
        """Shard by pairs of key/value heads, one whose value is late and one whose is not."""
        heads, groups, width = self.n_heads, self.n_kv_heads, self.head_dim
        halves = (heads // 2, heads // 2, groups // 2, groups // 2)
        columns = tuple(half * width for half in halves)
        cuts = {
            "qk.weight": Cut(0, columns),
            "v.weight": Cut(0, columns[2:]),
            "out.weight": Cut(1, columns[:2]),
            "column_weight": Cut(0, columns),
            "column_bias": Cut(0, columns),
            "head_weight": Cut(0, halves),
            "head_bias": Cut(0, halves),
            "temperature": Cut(0, halves[2:]),
        }
        # Before the convolutions, windows of the first one's output, before the norm, as rotated;
        # the attention's output, keys before their temperature, values.
        saved = (self.conv_width + 3) * sum(columns) + sum(columns[:2]) + 2 * sum(columns[2:])
        units = "pairs of key/value heads"
        return Division(units, groups // 2, cuts, saved, self._narrow)

    def _narrow(self, ranks: int) -> None:
        self.n_heads, self.n_kv_heads = self.n_heads // ranks, self.n_kv_heads // ranks

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> CCGQAState:
        """Return an empty state for ``length`` positions."""
        make = functools.partial(torch.zeros, device=device, dtype=dtype)
        columns = (self.n_heads + self.n_kv_heads) * self.head_dim
        return CCGQAState(
            KVState(make(batch, 2 * self.n_kv_heads, length, self.head_dim)),
            make(batch, 2 * (self.conv_width - 1), columns),
            make(batch, 1, self.n_kv_heads * self.head_dim // 2),
        )

    def forward(
        self,
        x_BSE: Tensor,
        state: CCGQAState | None = None,
        position: Tensor | None = None,
        rows: Rows | None = None,
        shared: SharedKV | None = None,
    ) -> Tensor:
        """Attend to the past; the arguments are those of ``models.layers.attention.Attention``."""
        x_BSE = self.region.enter(x_BSE, product=True)
        began = state if position is not None else None
        qk_BSM = self.qk(x_BSE)
        halo_BLM = self._before(qk_BSM, self.rows_before, began and began.halo)
        qk_BTM = torch.cat((halo_BLM, qk_BSM), 1)
        if state is not None:
            state.halo.copy_(_last(qk_BTM, halo_BLM.shape[1], rows))
        q_BSHD, k_BSGD = self._mixed(qk_BSM, qk_BTM)
        v_BSGD = k_BSGD  # not read if the values are another call's
        if shared is None or shared.keys is None:
            v_BSGD, late_BTN = self._values(x_BSE, began)
            if state is not None:
                state.late.copy_(_last(late_BTN, 1, rows))
        ones_D = q_BSHD.new_ones(self.head_dim)
        turn = functools.partial(_normed, ones_D, self.norm_eps)
        q_BHSD, k_BGSD = turned(turn, q_BSHD, k_BSGD, self.rotary, position, rows, self.context)
        k_BGSD = k_BGSD * self.temperature.exp().to(k_BGSD.dtype)[:, None, None]
        kv = None if state is None else state.kv
        v_BGSD = v_BSGD.transpose(1, 2)
        y_BHSD = attend(
            q_BHSD, k_BGSD, v_BGSD, kv, position, rows, shared, self.window, self.context
        )
        return self.region.leave(self.out(y_BHSD.transpose(1, 2).flatten(2)))

    def _before(self, x_BSC: Tensor, n_rows: int, rows_BLC: Tensor | None) -> Tensor:
        """Return the rows before the first: those in the state, or of the previous rank."""
        return self.context.before(x_BSC, n_rows) if rows_BLC is None else rows_BLC

    def _values(self, x_BSE: Tensor, began: CCGQAState | None) -> tuple[Tensor, Tensor]:
        """Return the values, and the late half with the row before it."""
        now_BSN, late_BSN = self.v(x_BSE).chunk(2, -1)
        late_BTN = torch.cat((self._before(late_BSN, 1, began and began.late), late_BSN), 1)
        v_BSC = torch.cat((now_BSN, late_BTN[:, :-1]), -1)
        return v_BSC.unflatten(-1, (self.n_kv_heads, self.head_dim)), late_BTN

    def _mixed(self, qk_BSM: Tensor, qk_BTM: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, S, H, D) and keys (B, S, G, D) after convolutions and means."""
        heads, groups, width = self.n_heads, self.n_kv_heads, self.conv_width
        n_new, shape = qk_BSM.shape[1], (heads + groups, self.head_dim)
        qk_BTM, _ = kernels.causal_conv1d(qk_BTM, self.column_weight, self.column_bias)
        # the first ones saw incomplete windows
        qk_BTXD = qk_BTM[:, width - 1 :].unflatten(-1, shape)
        windows = torch.cat([qk_BTXD[:, i : i + n_new] for i in range(width)], -1)
        qk_BSXD = torch.einsum("bsxi,xio->bsxo", windows, self.head_weight)
        q_BSHD, k_BSGD = (qk_BSXD + self.head_bias.to(qk_BSXD.dtype)).split((heads, groups), 2)
        q_before, k_before = qk_BSM.unflatten(-1, shape).split((heads, groups), 2)
        mean = (q_before + k_before.repeat_interleave(heads // groups, 2)) / 2
        return q_BSHD + mean, k_BSGD + mean.unflatten(2, (groups, -1)).mean(3)


def _normed(
    ones_D: Tensor, eps: float, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, offset: int | Tensor
) -> tuple[Tensor, Tensor]:
    return kernels.qk_norm_rope(q, k, ones_D, ones_D, cos, sin, eps, offset=offset)


def _last(x_BTC: Tensor, n_rows: int, rows: Rows | None) -> Tensor:
    """Return the last rows that count, of ``n_rows`` from before and those of the call."""
    if rows is None or rows.count is None:
        return x_BTC[:, x_BTC.shape[1] - n_rows :]
    index_BR = rows.count[:, None] + torch.arange(n_rows, device=x_BTC.device)
    return x_BTC.gather(1, index_BR[..., None].expand(-1, -1, x_BTC.shape[2]))
