"""Attention whose heads compute with the rank and the precision that ``adaptation`` chose.

One operator does both, ``kernels.adaptive_attention``, which never holds the matrix of weights. It
is a pure function of its inputs and of the choice, so that it may be recomputed, compiled and
captured.

Decoding is *frozen*: a call with a state never adapts, and computes with the choice of the last
adapting call, as the same tokens in one call would. The state holds keys in the basis, cut and
rounded. These depend only on the token, so that a step does not prepare them again.
"""

# Shapes: B batch, S queries, T keys, E model width, H heads, D head width, X = 3 H.

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional

import kernels
from kernels.adaptive_attention import cut_and_rounded, prepared
from models.layers.adaptive.choice import Choice
from models.layers.adaptive.measurements import Sight, longest, look, sampled
from models.layers.adaptive.rules import Rules
from models.layers.attention import KVState, RotaryCache, is_cached_step
from models.layers.basic import INIT_STD, Linear, RMSNorm, can_fuse, computed_dtype
from models.parallel.context_parallel import FULL, Context, SavedBeside


class ProjectedHeads(Linear):
    """The projection to queries, keys and values; most heads may start narrow.

    With ``dimensions``, the queries and keys of three heads of four start in so many dimensions:
    the rows of all others are zero. Dimensions come in the pairs that rotary positions rotate,
    so that rotated queries and keys stay in them. Training may widen them.
    """

    def __init__(self, dim: int, n_heads: int, dimensions: int) -> None:
        super().__init__(dim, 3 * dim)
        self.n_heads, self.dimensions = n_heads, dimensions

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Return the starting value of parameter ``name``, in FP32 on the CPU."""
        weight = super().initial(name, shape, generator)
        if self.dimensions:
            narrow = [h for h in range(self.n_heads) if h % 4 != 3]
            # Query or key or value, head, half of a pair, pair.
            by_pairs = weight.view(3, self.n_heads, 2, -1, shape[-1])
            by_pairs[:2, narrow, :, self.dimensions // 2 :] = 0
        return weight


class AdaptiveHeads(nn.Module):
    """Multi-head attention, (B, S, E) over (B, T, E), with a choice from the caller.

    With ``norm_eps``, queries and keys are normalised per head (arXiv 2010.04245), which bounds the
    scores by sqrt(D) times the gains; with ``rotary``, rotated by their positions. ``fuses_cache``
    and ``fuses_heads`` as in ``models.layers.attention.Attention``.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        rules: Rules,
        *,
        causal: bool = True,
        rotary: RotaryCache | None = None,
        norm_eps: float | None = None,
        std_out: float = INIT_STD,
        measures_values: bool = False,
        qk_dimensions: int = 0,
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.rules, self.causal = rules, causal
        self.measures_values = measures_values
        self.scale = self.head_dim**-0.5
        self.qkv = ProjectedHeads(dim, n_heads, qk_dimensions)
        self.out = Linear(dim, dim, std_out)
        self.rotary = rotary
        self.fuses_cache = self.fuses_heads = False
        self.context: Context = FULL
        self.q_norm = None if norm_eps is None else RMSNorm(self.head_dim, norm_eps)
        self.k_norm = None if norm_eps is None else RMSNorm(self.head_dim, norm_eps)

    @property
    def beside_split(self) -> SavedBeside:
        """Numbers saved where ranks split the sequence.

        These are keys and values of the other ranks, and a second copy of this rank's values, which
        remain in the projection. Keys that a kernel rounds are copies of gathered ones.
        """
        width, rules = self.n_heads * self.head_dim, self.rules
        keys = width if rules.narrows and rules.allow_fp8 else 0
        return SavedBeside(
            gathered=2 * width + keys,
            own=width + keys,
            rounded=width if rules.narrows and not keys else 0,
        )

    @property
    def unsplit(self) -> str:
        """Reason why ranks cannot split the sequence; empty if they can."""
        if self.rules.adaptive_rank or self.rules.adaptive_precision:
            return "its heads adapt to queries and keys of the full sequence"
        return ""

    def division(self) -> str:
        """Return why every rank has the complete layer."""
        return "all heads are measured and adapted jointly"

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> KVState:
        """Return an empty state for ``length`` positions."""
        shape = (batch, 2 * self.n_heads, length, self.head_dim)
        return KVState(torch.zeros(shape, device=device, dtype=dtype))

    def forward(
        self,
        q_BSE: Tensor,
        k_BTE: Tensor,
        v_BTE: Tensor,
        choice: Choice | None = None,
        *,
        mask: Tensor | None = None,
        state: KVState | None = None,
        position: Tensor | None = None,
        kv_length: Tensor | None = None,
        sight: Sight | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output (B, S, E) and, with a ``sight``, what ``Adaptation.measures`` needs.

        Without ``choice`` it computes with all columns, unrounded, and measures nothing. ``mask``,
        Boolean, broadcasts to [B, H, S, T]: True where a key is seen. ``state`` and ``position`` as
        in ``models.layers.attention.Attention``; with these, ``kv_length`` is the position after
        this call's. With ``measures_values`` the largest of the ``values`` [H] is measured too.
        """
        if q_BSE is k_BTE is v_BTE and self._writes_directly(q_BSE, choice, state, position):
            assert mask is None and sight is None, "a step with a cache never adapts"
            y = self._attend_directly(self.qkv(q_BSE), choice, state, position, kv_length)
            return self.out(y.transpose(1, 2).flatten(2)), {}
        q, k, v = self._heads(q_BSE, k_BTE, v_BTE, position)
        measured: dict[str, Tensor] = {}
        if sight is not None and choice is not None:
            measured["rows"] = sampled(q, k, sight)
        q, k = _narrowed(q, k, choice)
        if sight is not None and choice is not None:
            scale = self.scale if choice.scale is None else choice.scale
            measured |= look(q, k, sight, scale)
            measured |= {"q": longest(q, choice.parts), "k": longest(k, choice.parts)}
            if self.measures_values:
                measured["values"] = vector_norm(v.detach(), math.inf, (0, 2, 3))
        y = self._attend(q, k, v, choice, mask, state, position, kv_length)
        return self.out(y.transpose(1, 2).flatten(2)), measured

    def fused_step(
        self,
        x_BSE: Tensor,
        norm: RMSNorm,
        choice: Choice | None,
        *,
        state: KVState | None,
        position: Tensor | None,
        kv_length: Tensor | None,
    ) -> Tensor:
        """Return ``x + forward(norm(x))`` of a decoding step, fused into its two linear layers."""
        qkv = self.qkv.fused(x_BSE, norm)
        if self._writes_directly(x_BSE, choice, state, position):
            y = self._attend_directly(qkv, choice, state, position, kv_length)
        else:
            q, k, v = (t.transpose(1, 2) for t in self._split(qkv))
            q, k = _narrowed(*self._turned(q, k, position), choice)
            y = self._attend(q, k, v, choice, None, state, position, kv_length)
        return self.out.fused(y.transpose(1, 2).flatten(2), residual=x_BSE)

    def _writes_directly(
        self,
        x_BSE: Tensor,
        choice: Choice | None,
        state: KVState | None,
        position: Tensor | None,
    ) -> bool:
        """Return True if one operator can write a token's keys as the choice wants them."""
        can_write = self.fuses_cache and self.rotary is not None
        if not can_write or not is_cached_step(x_BSE, state, position):
            return False
        rules = self.rules  # rules may round keys before the cache stores them
        rounds = rules.adaptive_rank or rules.rounds(computed_dtype(x_BSE))
        return choice is None or choice.cut or not rounds

    def _attend_directly(
        self,
        qkv_BSX: Tensor,
        choice: Choice | None,
        state: KVState | None,
        position: Tensor | None,
        kv_length: Tensor | None,
    ) -> Tensor:
        """Return attention (B, H, 1, D) of a token that one operator writes to the cache."""
        assert self.rotary is not None and state is not None and position is not None
        matrix = None if choice is None else choice.to_both
        norms, eps = self._norms()
        q, length = state.append(qkv_BSX, self.rotary, position, *norms, matrix, eps)
        return kernels.attention(
            q,
            state.keys,
            state.values,
            causal=True,
            scale=self.scale,
            kv_length=length if kv_length is None else kv_length,
        )

    def _split(self, qkv_BSX: Tensor) -> tuple[Tensor, ...]:
        qkv_BSXD = qkv_BSX.unflatten(-1, (3 * self.n_heads, self.head_dim))
        return qkv_BSXD.split(self.n_heads, dim=2)

    def _heads(
        self, q_BSE: Tensor, k_BTE: Tensor, v_BTE: Tensor, position: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys, normalised and rotated, and values."""
        rotary, consecutive = self.rotary, q_BSE is k_BTE is v_BTE and position is None
        if not (self.fuses_heads and consecutive and rotary and can_fuse(self.qkv, q_BSE)):
            q, k, v = self._project(q_BSE, k_BTE, v_BTE)
            return *self._turned(q, k, position), v
        norms, eps = self._norms()
        return kernels.qkv_rope(  # type: ignore[no-any-return]
            q_BSE, self.qkv.weight, rotary.cos_SR, rotary.sin_SR, self.n_heads,
            self.n_heads, *norms, eps, self.context.start(q_BSE.shape[1]),
        )  # fmt: skip

    def _norms(self) -> tuple[tuple[Tensor | None, Tensor | None], float]:
        """Return the gains of the norms of queries and keys, and their epsilon."""
        if self.q_norm is None or self.k_norm is None:
            return (None, None), 0.0
        return (self.q_norm.weight, self.k_norm.weight), self.q_norm.eps

    def _project(
        self, q_BSE: Tensor, k_BTE: Tensor, v_BTE: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if q_BSE is k_BTE is v_BTE:
            q, k, v = self._split(self.qkv(q_BSE))
            if torch.is_grad_enabled() and self.q_norm is None:
                # Backward needs the values, and a view of them would keep all of qkv until then; a
                # norm's backward needs the other parts too.
                v = v.contiguous()
        else:
            width = self.n_heads * self.head_dim
            q, k, v = (
                self.qkv.part(x, n * width, (n + 1) * width).unflatten(-1, (-1, self.head_dim))
                for n, x in enumerate((q_BSE, k_BTE, v_BTE))
            )
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _turned(self, q: Tensor, k: Tensor, position: Tensor | None) -> tuple[Tensor, Tensor]:
        """Normalise and rotate, where there are norms and positions."""
        offset = self.context.start(q.shape[2]) if position is None else position
        rotary, q_norm, k_norm = self.rotary, self.q_norm, self.k_norm
        if rotary is None:
            if q_norm is None or k_norm is None:
                return q, k
            return kernels.qk_norm(q, k, q_norm.weight, k_norm.weight, q_norm.eps)
        tables = rotary.cos_SR, rotary.sin_SR
        if q_norm is None or k_norm is None:
            return kernels.rope(q, k, *tables, offset=offset)
        weights = q_norm.weight, k_norm.weight
        return kernels.qk_norm_rope(q, k, *weights, *tables, q_norm.eps, offset=offset)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        choice: Choice | None,
        mask: Tensor | None,
        state: KVState | None,
        position: Tensor | None,
        kv_length: Tensor | None,
    ) -> Tensor:
        rules, scale = self.rules, self.scale
        rank_H = bits_H = None
        if choice is not None:
            rank_H = choice.rank if rules.adaptive_rank else None
            bits_H = choice.bits if rules.narrows else None
        if state is not None:
            low_q, low_k = q, k
            if choice is not None and not choice.cut:
                if position is None:  # no query meets them there
                    low_k = cut_and_rounded(k, rank_H, bits_H, rules.allow_fp8)
                else:
                    low_q, low_k, _ = prepared(q, k, rank_H, bits_H, scale, rules.allow_fp8)
            state.write(low_k, v, position)
            if position is not None:
                visible_length = position + q.shape[2] if kv_length is None else kv_length
                return kernels.attention(
                    low_q,
                    state.keys,
                    state.values,
                    causal=True,
                    scale=scale,
                    kv_length=visible_length,
                )
        if mask is not None:
            low_q, low_k, _ = prepared(q, k, rank_H, bits_H, scale, rules.allow_fp8)
            if self.causal:
                past = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
                mask = mask & past.tril(k.shape[2] - q.shape[2])
            return functional.scaled_dot_product_attention(low_q, low_k, v, mask, scale=scale)
        k, v = self.context.seen(k, v)
        return kernels.adaptive_attention(
            q, k, v, rank_H, bits_H, causal=self.causal, scale=scale, allow_fp8=rules.allow_fp8
        )


def _narrowed(q: Tensor, k: Tensor, choice: Choice | None) -> tuple[Tensor, Tensor]:
    """Return queries and keys in the columns of the choice, where it has any."""
    if choice is None or choice.to_queries is None or choice.to_keys is None:
        return q, k
    if choice.to_both is not None and q.shape[2] == k.shape[2] == 1:  # one kernel instead of two
        q, k = _times(torch.cat((q, k), dim=1), choice.to_both).chunk(2, dim=1)
        return q, k
    return _times(q, choice.to_queries), _times(k, choice.to_keys)


def _times(x_BHSD: Tensor, matrix_HDD: Tensor) -> Tensor:
    """Multiply each head by its matrix: [B, H, S, D], in memory [H, B, S, D].

    Heads are the batch of the product. With samples and heads there, torch would copy the matrices
    and tensors laid out by tokens.
    """
    x_HND = x_BHSD.transpose(0, 1).flatten(1, 2)
    return torch.bmm(x_HND, matrix_HDD).unflatten(1, (x_BHSD.shape[0], -1)).transpose(0, 1)
