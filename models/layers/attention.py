"""Causal attention with grouped key/value heads, its rotary tables, and its decode state.

Grouped queries: arXiv 2305.13245; rotary positions: arXiv 2104.09864. If only some tokens of a
sequence were gathered (``Rows``), they are rotated by their original positions, see each other, and
are appended to a state that fills as they arrive.

Shapes: B batch, S new tokens, T cache length, E model width, H query heads, G key/value heads, X =
H + 2 G, D head width, R = D / 2 rotated pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from kernels.rope import table
from models.layers.basic import INIT_STD, Linear, RMSNorm, can_fuse
from models.layers.routing import Rows
from models.parallel.context_parallel import FULL, Context, SavedBeside
from models.parallel.tensor_parallel_plan import WHOLE, Cut, Division, Region


class RotaryCache(nn.Module):
    """Cosines and sines of every position, in FP32; several layers may hold the same one.

    They are a function of three numbers, so they are not part of the weights (not in the state
    dict). They are recomputed wherever the module goes: from the meta device, to another device,
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
    """Keys and values of one layer for up to T positions.

    ``both`` (B, 2 G, T, D) holds the keys and then the values, so that one kernel writes both.
    """

    both: Tensor

    def __post_init__(self) -> None:
        self._views = [self.keys, self.values]

    @property
    def keys(self) -> Tensor:
        """The keys (B, G, T, D), a view."""
        return self.both[:, : self.both.shape[1] // 2]

    @property
    def values(self) -> Tensor:
        """The values (B, G, T, D), a view."""
        return self.both[:, self.both.shape[1] // 2 :]

    def tensors(self) -> list[Tensor]:
        """Return all tensors, for counting bytes, resetting and files; always the same objects."""
        return self._views

    def carried(self) -> list[Tensor]:
        """Return no tensors: a cache can go back, because no token sees later ones."""
        return []

    def write(
        self, k_BGSD: Tensor, v_BGSD: Tensor, position: Tensor | None, rows: Rows | None = None
    ) -> None:
        """Write S positions, the first at ``position`` (int64 [] on the device) or 0.

        Chosen ``rows`` go after those that each sequence already has. Rows that do not count are
        written beyond them, ultimately into the one extra slot.
        """
        n_new = k_BGSD.shape[2]
        self._check_dtype(k_BGSD)
        if position is None:
            self.keys[:, :, :n_new].copy_(k_BGSD)
            self.values[:, :, :n_new].copy_(v_BGSD)
        elif rows is not None:
            assert rows.filled is not None
            places_BS = rows.filled[:, None] + torch.arange(n_new, device=position.device)
            places_BS = places_BS.clamp(max=self.both.shape[2] - 1)
            places_BGSD = places_BS[:, None, :, None].expand_as(k_BGSD)
            self.keys.scatter_(2, places_BGSD, k_BGSD)
            self.values.scatter_(2, places_BGSD, v_BGSD)
        else:
            # One decoded token is the most frequent case, and needs no kernel of its own.
            rows_S = position.reshape(1)
            if n_new > 1:
                rows_S = position + torch.arange(n_new, device=position.device)
            self.both.index_copy_(2, rows_S, torch.cat((k_BGSD, v_BGSD), dim=1))

    def append(
        self,
        qkv_B1X: Tensor,
        rotary: RotaryCache,
        position: Tensor,
        q_weight_D: Tensor | None = None,
        k_weight_D: Tensor | None = None,
        matrix_ZDD: Tensor | None = None,
        eps: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Write one token by one operator; return queries (B, H, 1, D) and the length after it.

        ``qkv_B1X`` are projected queries, keys and values. Queries and keys are normalised if there
        are weights, rotated, and multiplied by each head's matrix if there is one.
        """
        self._check_dtype(qkv_B1X)
        heads_BXD = qkv_B1X[:, 0].unflatten(-1, (-1, self.both.shape[3]))
        q_BHD, length = kernels.rope_to_cache(
            heads_BXD, self.both, rotary.cos_SR, rotary.sin_SR, position, q_weight_D, k_weight_D,
            matrix_ZDD, eps,
        )  # fmt: skip
        return q_BHD[:, :, None], length

    def _check_dtype(self, computed: Tensor) -> None:
        if computed.dtype != self.both.dtype:
            raise ValueError(
                f"the cache holds {self.both.dtype}, but the layer computed {computed.dtype}; "
                "create the cache under the same autocast as the calls that use it"
            )


@dataclass
class SharedKV:
    """Keys and values that one recursion computes for all tokens, and later ones read."""

    keys: Tensor | None = None  # (B, G, T, D); None until they are computed
    values: Tensor | None = None


def is_cached_step(x_BSE: Tensor, state: KVState | None, position: Tensor | None) -> bool:
    """Return True if a call adds one token to each cached sequence, without gradients."""
    cached = state is not None and position is not None
    return cached and x_BSE.shape[1] == 1 and not torch.is_grad_enabled()


Turn = Callable[..., tuple[Tensor, Tensor]]  # kernels.rope, or one that normalises too


def turned(
    turn: Turn,
    q_BSHD: Tensor,
    k_BSGD: Tensor,
    rotary: RotaryCache,
    position: Tensor | None,
    rows: Rows | None,
    context: Context = FULL,
) -> tuple[Tensor, Tensor]:
    """Return queries (B, H, S, D) and keys (B, G, S, D), rotated by their positions."""
    if rows is None:
        q_BHSD, k_BGSD = q_BSHD.transpose(1, 2), k_BSGD.transpose(1, 2)
        offset = context.start(q_BHSD.shape[2]) if position is None else position
        return turn(q_BHSD, k_BGSD, rotary.cos_SR, rotary.sin_SR, offset=offset)
    # The operator needs consecutive positions: a table that holds them row by row makes them so.
    positions = rows.position.flatten()
    batch = len(rows.position)
    q, k = (x.flatten(0, 1).transpose(0, 1)[None] for x in (q_BSHD, k_BSGD))
    q, k = turn(q, k, rotary.cos_SR[positions], rotary.sin_SR[positions], offset=0)
    q, k = (x[0].unflatten(1, (batch, -1)).transpose(0, 1) for x in (q, k))
    return q, k


def attend(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    state: KVState | None,
    position: Tensor | None,
    rows: Rows | None,
    shared: SharedKV | None,
    window: int = 0,
    context: Context = FULL,
) -> Tensor:
    """Compute attention of this call's tokens to themselves and to ``state``, (B, H, S, D).

    Fills ``shared`` if it is empty; otherwise only the queries are used. ``window`` is how many of
    the gathered keys a query sees, its own the last; 0: all.
    """
    attention_window = window or None
    if shared is not None and shared.keys is not None:
        assert rows is not None
        length_BK = rows.position + 1
        single = length_BK.shape[1] == 1  # then backends with one length per sequence can run
        return kernels.attention(
            q_BHSD,
            shared.keys,
            shared.values,
            window=attention_window,
            kv_length=length_BK[:, 0] if single else length_BK,
        )
    if state is not None:
        state.write(k_BGSD, v_BGSD, position, rows)
    cached = state is not None and position is not None
    k, v = (state.keys, state.values) if state is not None and cached else (k_BGSD, v_BGSD)
    if shared is not None:
        shared.keys, shared.values = k, v
    if not cached or position is None:
        k, v = context.seen(k, v)
        return kernels.attention(q_BHSD, k, v, causal=True, window=attention_window)
    n_new = q_BHSD.shape[2]
    length = position + n_new
    if rows is not None:
        assert rows.filled is not None
        # Rows that do not count may reach beyond the last slot: each has its own length.
        length = rows.filled[:, None] + torch.arange(1, n_new + 1, device=position.device)
        length = length[:, 0] if n_new == 1 else length
    return kernels.attention(q_BHSD, k, v, causal=True, window=attention_window, kv_length=length)


class Attention(nn.Module):
    """Causal self-attention, (B, S, E) -> (B, S, E), H query heads over G key/value heads.

    Without ``rotary`` positions matter only through the causal mask. A query sees the last
    ``window`` keys, 0: all. One linear makes queries, keys and values: under autocast its input is
    cast once. ``fuses_cache``: one operator rotates a decoded token and writes it to the cache.
    ``fuses_heads``: one operator projects the tokens of a sequence and rotates them.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        rotary: RotaryCache | None,
        std_out: float = INIT_STD,
        window: int = 0,
    ) -> None:
        super().__init__()
        self.window = window
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.qkv = Linear(dim, (n_heads + 2 * n_kv_heads) * self.head_dim)
        self.out = Linear(n_heads * self.head_dim, dim, std_out)
        self.rotary = rotary
        self.fuses_cache = self.fuses_heads = False
        self.region: Region = WHOLE
        self.context: Context = FULL

    @property
    def beside_split(self) -> SavedBeside:
        """Numbers saved where ranks split the sequence: keys and values of the other ranks."""
        return SavedBeside(gathered=2 * self.n_kv_heads * self.head_dim)

    def division(self) -> Division:
        """Shard by key/value heads, each with the query heads that share it."""
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        cuts = {"qkv.weight": Cut(0, (queries, keys, keys)), "out.weight": Cut(1, (queries,))}
        saved = 2 * (queries + keys)  # rotated copies, and the output
        return Division("key/value heads", self.n_kv_heads, cuts, saved, self._narrow)

    def _narrow(self, ranks: int) -> None:
        self.n_heads, self.n_kv_heads = self.n_heads // ranks, self.n_kv_heads // ranks

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> KVState:
        """Return an empty state for ``length`` positions."""
        shape = (batch, 2 * self.n_kv_heads, length, self.head_dim)
        return KVState(torch.zeros(shape, device=device, dtype=dtype))

    def forward(
        self,
        x_BSE: Tensor,
        state: KVState | None = None,
        position: Tensor | None = None,
        rows: Rows | None = None,
        shared: SharedKV | None = None,
    ) -> Tensor:
        """Attend to the past: this call's tokens, and with ``state`` those before ``position``.

        ``position`` None with a state means that the state is empty: the tokens see only each
        other, so the causal kernel runs without reading the cache. With ``rows``, ``x_BSE`` are
        those rows; ``shared`` holds the keys and values of another call.
        """
        x_BSE = self.region.enter(x_BSE, product=True)
        if rows is None and shared is None and self._writes_directly(x_BSE, state, position):
            y_BHSD = self._attend_directly(self.qkv(x_BSE), state, position)
        else:
            heads = self.heads(
                x_BSE,
                position,
                rows,
                queries_only=shared is not None and shared.keys is not None,
                lasting=shared is not None,
            )
            y_BHSD = attend(*heads, state, position, rows, shared, self.window, self.context)
        return self.region.leave(self.out(y_BHSD.transpose(1, 2).flatten(2)))

    def fused_step(
        self, x_BSE: Tensor, norm: RMSNorm, state: KVState | None, position: Tensor | None
    ) -> Tensor:
        """Return ``x + forward(norm(x))`` of a decoding step, fused into its two linear layers."""
        if self._writes_directly(x_BSE, state, position):
            y_BHSD = self._attend_directly(self.qkv.fused(x_BSE, norm), state, position)
        else:
            heads = self.heads(x_BSE, position, norm=norm)
            y_BHSD = attend(*heads, state, position, None, None, self.window, self.context)
        return self.out.fused(y_BHSD.transpose(1, 2).flatten(2), residual=x_BSE)

    def _writes_directly(
        self, x_BSE: Tensor, state: KVState | None, position: Tensor | None
    ) -> bool:
        return (
            self.fuses_cache and self.rotary is not None and is_cached_step(x_BSE, state, position)
        )

    def _attend_directly(
        self, qkv_B1X: Tensor, state: KVState | None, position: Tensor | None
    ) -> Tensor:
        """Return attention (B, H, 1, D) of a token that one operator writes to the cache."""
        assert self.rotary is not None and state is not None and position is not None
        q_BH1D, length = state.append(qkv_B1X, self.rotary, position)
        keys, values, window = state.keys, state.values, self.window or None
        return kernels.attention(q_BH1D, keys, values, causal=True, window=window, kv_length=length)

    def heads(
        self,
        x_BSE: Tensor,
        position: Tensor | None = None,
        rows: Rows | None = None,
        *,
        queries_only: bool = False,
        lasting: bool = False,
        norm: RMSNorm | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, S, D), keys and values (B, G, S, D); first token at ``position``.

        ``lasting``: the values outlive this call. ``norm``: the linear layer normalises first.
        """
        heads, groups = self.n_heads, self.n_kv_heads
        rotary, consecutive = self.rotary, position is None and rows is None and not lasting
        if self.fuses_heads and consecutive and rotary and can_fuse(self.qkv, x_BSE):
            return kernels.qkv_rope(  # type: ignore[no-any-return]
                x_BSE, self.qkv.weight, rotary.cos_SR, rotary.sin_SR, heads, groups,
                offset=self.context.start(x_BSE.shape[1]),
            )  # fmt: skip
        if queries_only:
            q_BSHD = self.qkv.part(x_BSE, 0, heads * self.head_dim)
            q_BSHD = q_BSHD.unflatten(-1, (heads, self.head_dim))
            k_BSGD = v_BSGD = q_BSHD[:, :, :1]  # not read
        else:
            qkv_BSX = self.qkv(x_BSE) if norm is None else self.qkv.fused(x_BSE, norm)
            qkv_BSXD = qkv_BSX.unflatten(-1, (heads + 2 * groups, self.head_dim))
            q_BSHD, k_BSGD, v_BSGD = qkv_BSXD.split((heads, groups, groups), dim=2)
            if lasting or torch.is_grad_enabled():
                # Later calls or backward need the values, and a view would keep all of qkv.
                v_BSGD = v_BSGD.contiguous()
        if self.rotary is None:
            q_BHSD, k_BGSD = q_BSHD.transpose(1, 2), k_BSGD.transpose(1, 2)
        else:
            q_BHSD, k_BGSD = turned(
                kernels.rope, q_BSHD, k_BSGD, self.rotary, position, rows, self.context
            )
        return q_BHSD, k_BGSD, v_BSGD.transpose(1, 2)
