"""Adaptation of attention: measurements of each head, and the rank and precision chosen from them.

All of it happens on the device, and the host never reads anything. Every call that adapts runs an
analysis, and a counter on the device decides which analyses count (``torch.where``), so that a
captured CUDA graph adapts like an eager step. A choice applies only to later calls. So tokens
never depend on later ones, and the backward pass of a call, recomputed or not, uses the choices of
its forward pass.

**Measurements**, from some queries of every sequence and head: the entropy of their weights over
that of equal weights, from 0 to 1, and the largest score.

**Rank.** ``kernels.low_rank`` computes a basis of the head's queries and keys, those that matter
most first. Every adapting call continues it by one iteration with that call's tokens, and the
analyses that count start to use it. The rank is the least of a few widths (a head dimension, half,
a quarter: the tiles of the kernel; heads of one width are a bucket) that holds

* "entropy": the effective rank of Roy and Vetterli (2007), the exponential of the entropy of the
  columns' fractions of the sum of squares; all columns where the normalised entropy of the weights
  is at ``rank_threshold`` or above, as in AdaAttn's phase 3 document;
* "energy": as many columns as hold the fraction ``rank_threshold`` of the sum of squares;

and in both cases at least ``rank_ratio`` D.

With e the fraction that the retained columns hold, the scale becomes 1 / sqrt(D e): 1 / sqrt(rank)
where all columns matter equally, 1 / sqrt(D) where the omitted ones hold nothing.

**Precision.** Rounding queries and keys to half steps of u (2^-4 in FP8, 2^-11 in FP16) moves a
score s by about 2 u s at most. The choice is the fewest bits that keep this below ``TOLERANCE``.

**Hysteresis.** More columns or bits apply at once. Fewer apply only after ``PATIENCE`` consecutive
analyses that would use fewer even with a result larger by ``MARGIN``.
"""

# Shapes: L rows (layers), B batch, H heads, S queries, T keys, D head width, N sampled queries,
# R sampled tokens.

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

import kernels
from models.initialisation import keep_dtypes
from models.layers.adaptive.choice import Chosen
from models.layers.adaptive.measurements import Sight
from models.layers.adaptive.rules import HALF_STEP, LEAST_STEP, PRECISIONS, Rules

PATIENCE = 2  # analyses
MARGIN = 0.1
TOLERANCE = 0.5  # nats
RIDGE = 1e-3  # fraction of energy added in all directions, so that few tokens have a complete basis


class Adaptation(nn.Module):
    """State of adaptive attention for L layers: the current choice of each head.

    It is not part of the weights (not in the state dict): a new model starts with all columns, the
    default precision, and no analysis done.
    """

    def __init__(self, rows: int, heads: int, head_dim: int, rules: Rules) -> None:
        super().__init__()
        self.rows, self.heads, self.head_dim, self.rules = rows, heads, head_dim, rules
        self.rank_LH: Tensor
        self.bits_LH: Tensor
        self.basis_LHDD: Tensor
        self.next_basis_LHDD: Tensor
        self.factor_LH: Tensor
        self.rank_calm_LH: Tensor
        self.bits_calm_LH: Tensor
        self.step: Tensor
        self.rebuild_buffers(torch.empty(0).device)

    @property
    def widths(self) -> tuple[int, ...]:
        """Ranks that a head may have, from narrow to wide."""
        padded = 1 << (self.head_dim - 1).bit_length()
        return tuple(sorted({self.head_dim, max(padded // 2, 1), max(padded // 4, 1)}))

    def rebuild_buffers(self, device: torch.device) -> None:
        """Reset the state on ``device``."""
        shape, dim = (self.rows, self.heads), self.head_dim
        values = {
            "rank_LH": torch.full(shape, dim, dtype=torch.int32, device=device),
            "bits_LH": torch.full(
                shape,
                PRECISIONS[self.rules.default_precision],
                dtype=torch.int32,
                device=device,
            ),
            "basis_LHDD": torch.zeros(*shape, dim, dim, dtype=torch.float32, device=device),
            "next_basis_LHDD": torch.zeros(*shape, dim, dim, dtype=torch.float32, device=device),
            "factor_LH": torch.ones(shape, dtype=torch.float32, device=device),
            "rank_calm_LH": torch.zeros(shape, dtype=torch.int32, device=device),
            "bits_calm_LH": torch.zeros(shape, dtype=torch.int32, device=device),
            "step": torch.zeros((), dtype=torch.int64, device=device),
        }
        for basis in ("basis_LHDD", "next_basis_LHDD"):
            values[basis].diagonal(dim1=-2, dim2=-1).fill_(1.0)
        for name, value in values.items():
            self.register_buffer(name, value, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Adaptation:
        """Move with the module; a cast does not apply to this."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        keep_dtypes(self, before)
        return self

    @property
    def _current(self) -> list[Tensor]:
        return [self.rank_LH, self.bits_LH, self.basis_LHDD, self.factor_LH]

    def chosen(self) -> Chosen:
        """Return copies of the current choices of every layer, which ``update`` does not change."""
        return Chosen(*(tensor.clone() for tensor in self._current))

    def begin(self, chosen: Chosen, position: Tensor | None) -> None:
        """Start a call on cached sequences: new ones (None or 0) take the current choice."""
        pairs = zip(chosen.tensors(), self._current, strict=True)
        if position is None:
            for cached, current in pairs:
                cached.copy_(current)
            return
        begins = position == 0
        for cached, current in pairs:
            torch.where(begins, current, cached, out=cached)

    def measures(self, by_layer: Sequence[Mapping[str, Tensor]], sight: Sight) -> dict[str, Tensor]:
        """Combine the results of ``look``, ``longest`` and ``sampled`` for every layer.

        The current choice applies. Returns ``entropy``, ``largest`` and ``score_error`` [L, H],
        ``rows`` [L, H, 2 R, D], all FP32.
        """
        nats_LHBN, largest_LH, rows_LHRD = (
            torch.stack([layer[name] for layer in by_layer]) for name in ("nats", "largest", "rows")
        )
        longest_LXPH = torch.stack([layer[name] for layer in by_layer for name in ("q", "k")])
        q_LPH, k_LPH = longest_LXPH.unflatten(0, (-1, 2)).float().unbind(1)
        scale = self.head_dim**-0.5
        largest_LH = largest_LH.float() * scale
        if self.rules.adaptive_rank:
            largest_LH = largest_LH / self.factor_LH
        return {
            "entropy": (nats_LHBN * sight.share).sum((2, 3)).float(),
            "largest": largest_LH,
            "score_error": score_error(
                q_LPH, k_LPH, Chosen(*self._current), scale, self.rules, rows_LHRD.dtype
            ),
            "rows": rows_LHRD.float(),
        }

    def update(self, measured: Mapping[str, Tensor]) -> None:
        """Apply what ``measures`` returns; it counts every ``refresh_every`` calls.

        A head whose measurements are not finite keeps its choice.
        """
        rules = self.rules
        entropy_LH, largest_LH = measured["entropy"], measured["largest"]
        # Neither is ever below zero; NaN is not less than any number.
        due_LH = (self.step % rules.refresh_every == 0) & (entropy_LH + largest_LH < math.inf)
        if rules.adaptive_precision:
            wanted_LH, relaxed_LH = self._wanted_bits(_with_margin(largest_LH))
            bits_LH, calm_LH = settle(self.bits_LH, wanted_LH, relaxed_LH, self.bits_calm_LH)
            _keep(self.bits_LH, due_LH, bits_LH)
            _keep(self.bits_calm_LH, due_LH, calm_LH)
        if rules.adaptive_rank:
            rows_LHRD = measured["rows"]
            with kernels.without_autocast(rows_LHRD):
                basis_LHDD, energy_LHD = _refreshed(rows_LHRD, self.next_basis_LHDD)
            share_LHD = energy_LHD.cumsum(-1)
            total_LH1 = share_LHD[..., -1:]
            share_LHD = share_LHD / total_LH1
            columns_LH = self._wanted_columns(energy_LHD / total_LH1, share_LHD)
            wanted_LH, relaxed_LH = self._width(_with_margin(columns_LH), _with_margin(entropy_LH))
            rank_LH, calm_LH = settle(self.rank_LH, wanted_LH, relaxed_LH, self.rank_calm_LH)
            kept_LH = share_LHD.gather(-1, rank_LH.long()[..., None] - 1)[..., 0]
            sound_LH = total_LH1[..., 0] < math.inf  # the complete basis contributes to it
            _keep(self.next_basis_LHDD, sound_LH[..., None, None], basis_LHDD)
            due_LH = due_LH & sound_LH
            _keep(self.rank_LH, due_LH, rank_LH)
            _keep(self.rank_calm_LH, due_LH, calm_LH)
            _keep(self.basis_LHDD, due_LH[..., None, None], basis_LHDD)
            _keep(self.factor_LH, due_LH, kept_LH.rsqrt())
        self.step.add_(1)

    def _wanted_columns(self, fraction_LHD: Tensor, cumulative_LHD: Tensor) -> Tensor:
        """Return the columns that a head needs, not yet rounded up to a width.

        The arguments are each column's fraction of the sum of squares, and that of the first 1 ...
        D.
        """
        rules = self.rules
        if rules.rank_estimation == "entropy":
            columns_LH = torch.special.entr(fraction_LHD).sum(-1).exp()
        else:
            columns_LH = 1.0 + (cumulative_LHD < rules.rank_threshold).sum(-1)
        return columns_LH

    def _width(self, columns: Tensor, entropy: Tensor) -> Tensor:
        """Return the least width that holds the columns; the widest if none does or may be cut."""
        rules, (*narrower, widest) = self.rules, self.widths
        if rules.rank_estimation == "entropy":
            columns = columns.masked_fill(entropy >= rules.rank_threshold, math.inf)
        least = rules.rank_ratio * self.head_dim
        return _lowest(columns, {width: width for width in narrower if width >= least}, widest)

    def _wanted_bits(self, largest: Tensor) -> Tensor:
        levels = (8, 16) if self.rules.allow_fp8 else (16,)
        return _lowest(largest, {bits: TOLERANCE / (2 * HALF_STEP[bits]) for bits in levels}, 32)


def _with_margin(x: Tensor) -> Tensor:
    """Return a measurement, and the same with a margin added."""
    return torch.stack([x, x * (1 + MARGIN)])


def _lowest(x: Tensor, limits: Mapping[int, float], highest: int) -> Tensor:
    """Return the lowest level whose limit is at least x, of rising ``limits``; else the highest."""
    result = torch.full_like(x, highest, dtype=torch.int32)
    for level, above in itertools.pairwise((*limits, highest)):
        result = torch.add(result, x <= limits[level], alpha=level - above)
    return result


def settle(
    current: Tensor, needed: Tensor, relaxed: Tensor, calm: Tensor, patience: int = PATIENCE
) -> tuple[Tensor, Tensor]:
    """Return the next level of every head, and the count of analyses that allowed a lower one.

    ``needed`` is the level that an analysis needs and ``relaxed``, never lower, the one that it
    would need with a margin more; all are integers of one shape.
    """
    calm = (calm + 1) * (relaxed < current)
    waits = calm < patience
    level = torch.where(waits, current, relaxed)
    return torch.maximum(level, needed), calm * waits


def score_error(
    q_LPH: Tensor, k_LPH: Tensor, chosen: Chosen, scale: float, rules: Rules, dtype: torch.dtype
) -> Tensor:
    """Bound the difference of any score from that of all columns unrounded, in nats, [L, H].

    For every token: |s - s'| <= scale (|q - q P| |k - k P| + (|1 - f| + f (2 u + u^2)) |q| |k|), P
    the retained columns, f the factor of the scale, u the rounding of a row; each output then
    differs by at most (e^(2 |s - s'|) - 1) max |v|. Queries and keys, in the basis and ``dtype``,
    are given by their ``longest``, queries times the factor; ``rules`` and ``dtype`` determine the
    rounding.
    """
    bits_LH, factor_LH, dim = chosen.bits, chosen.factor, chosen.basis.shape[-1]
    product_LPH = q_LPH * k_LPH / factor_LH[:, None]
    stretched_LH = (1 - factor_LH).abs()
    if rules.rounds(dtype):
        rounding_LH = torch.zeros_like(factor_LH)
        for bits in (16, 8) if rules.allow_fp8 else (16,):
            unit = HALF_STEP[bits] + math.sqrt(dim) * LEAST_STEP[bits]
            of_bits = 2 * unit + unit * unit if dtype.itemsize > 2 or bits == 8 else 0.0
            rounding_LH = torch.where(bits_LH <= bits, of_bits, rounding_LH)
        stretched_LH = stretched_LH + factor_LH * rounding_LH
    if product_LPH.shape[1] > 1:
        error_LH = torch.addcmul(product_LPH[:, 1], stretched_LH, product_LPH[:, 0])
    else:
        error_LH = stretched_LH * product_LPH[:, 0]
    return scale * error_LH


def _refreshed(rows_LHRD: Tensor, start_LHDD: Tensor) -> tuple[Tensor, Tensor]:
    """Return a basis, and each column's fraction of the sum of squares [L, H, D].

    Queries and keys have equal weight, at any length.
    """
    dim = rows_LHRD.shape[-1]
    halves = rows_LHRD.unflatten(-2, (2, -1))
    norm = vector_norm(halves, dim=(-2, -1), keepdim=True)
    rows_LHRD = (halves / norm.clamp_min(torch.finfo(norm.dtype).tiny)).flatten(-3, -2)
    ridge_DD = torch.eye(dim, dtype=norm.dtype, device=norm.device) * math.sqrt(RIDGE / dim)
    rows_LHRD = torch.cat([rows_LHRD, ridge_DD.expand(*rows_LHRD.shape[:-2], dim, dim)], -2)
    basis_LHDD, _ = kernels.low_rank(rows_LHRD, dim, iterations=1, start=start_LHDD)
    return basis_LHDD, (rows_LHRD @ basis_LHDD).square().sum(-2)


def _keep(buffer: Tensor, due: Tensor, value: Tensor) -> None:
    torch.where(due, value, buffer, out=buffer)
