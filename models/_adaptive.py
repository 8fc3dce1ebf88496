"""How attention adapts: what is measured of a head, and the rank and precision that follow from it.

All of it happens on the device and nothing is ever read by the host: an analysis runs in every call
that adapts, and a counter on the device says which of them counts (``torch.where``), so that a
captured CUDA graph adapts as an eager step does. A choice concerns the calls after the one that it
was made in. So tokens never depend on later ones, and the backward pass of a call, recomputed or
not, uses what its forward pass used.

**Measured**, of some queries of every sequence and head: the entropy of their weights over that of
equal weights, from 0 to 1, and the largest score.

**Rank.** A basis of the head's queries and keys, those that matter most first, comes from
``kernels.low_rank``: every call that adapts takes it one iteration further, by that call's tokens,
and the analyses that count put it to use. The rank is the least of a few widths (a head dimension,
half, a quarter: the tiles of the kernel; heads of one width are a bucket) that holds

* "entropy": the effective rank of Roy and Vetterli (2007), the exponential of the entropy of the
  columns' shares of the sum of squares; all columns where the normalised entropy of the weights is
  at ``rank_threshold`` or above, as in AdaAttn's phase 3 document;
* "energy": as many columns as hold the share ``rank_threshold`` of the sum of squares;

and in both cases at least ``rank_ratio`` D.

With e the share that the kept columns hold, the scale becomes 1 / sqrt(D e): 1 / sqrt(rank) where
all columns matter equally, 1 / sqrt(D) where those left out hold nothing.

**Precision.** Rounding queries and keys to half steps of u (2^-4 in FP8, 2^-11 in FP16) moves a
score s by about 2 u s at most: the fewest bits that keep this below ``TOLERANCE``.

**Hysteresis.** More columns or bits are taken at once, fewer only after ``PATIENCE`` analyses in a
row that would take fewer even if they had found ``MARGIN`` more.
"""

# Shapes: L rows (layers), B batch, H heads, S queries, T keys, D head width, N sampled queries,
# R sampled tokens.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

import kernels

SAMPLES = 32  # queries of a sequence
TOKENS = 128  # of a batch, whose queries and keys the basis is computed from
PATIENCE = 2  # analyses
MARGIN = 0.1
TOLERANCE = 0.5  # nats
RIDGE = 1e-3  # share of energy added in all directions, so that few tokens have a whole basis

ESTIMATIONS = ("entropy", "energy")
PRECISIONS = {"inputs": 32, "fp16": 16, "fp8": 8}  # bits of queries and keys
HALF_STEP = {16: 2.0**-11, 8: 2.0**-4}  # of an element
LEAST_STEP = {16: 2.0**-32, 8: 2.0**-17}  # of a row's largest element


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What decides ranks and precisions; the module says how."""

    rank_ratio: float = 0.5
    rank_estimation: str = "entropy"
    rank_threshold: float = 0.95
    adaptive_rank: bool = True
    adaptive_precision: bool = True
    default_precision: str = "inputs"
    allow_fp8: bool = False
    refresh_every: int = 16

    @property
    def narrows(self) -> bool:
        """Whether any head may ever be narrower than its inputs."""
        return self.adaptive_precision or self.default_precision != "inputs"


class Choice(NamedTuple):
    """What the heads of one attention compute with; no later analysis changes these tensors."""

    rank: Tensor  # [H], int32: columns
    bits: Tensor  # [H], int32
    basis: Tensor  # [H, D, D], FP32: orthonormal columns, those that matter most first
    factor: Tensor  # [H], FP32: of the scale 1 / sqrt(D)


@dataclass(frozen=True)
class Chosen:
    """The choices of all layers: a ``Choice`` with one dimension more, L, in front of each tensor.

    As a part of a decode state it is what the keys there were made with.
    """

    rank: Tensor
    bits: Tensor
    basis: Tensor
    factor: Tensor

    def rows(self) -> list[Choice]:
        """The choice of each layer."""
        layers = zip(*(each.unbind() for each in self.tensors()), strict=True)
        return [Choice(*layer) for layer in layers]

    def tensors(self) -> list[Tensor]:
        """All that is held."""
        return [self.rank, self.bits, self.basis, self.factor]

    def carried(self) -> list[Tensor]:
        """Nothing: no token changes it."""
        return []


class Adaptation(nn.Module):
    """The state of adaptive attention for L layers: what each head computes with from now on.

    No part of the weights (not in the state dict): a model that is built anew starts with all
    columns, the default precision, and no analysis done.
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
        """The ranks that a head may have, from narrow to wide."""
        padded = 1 << (self.head_dim - 1).bit_length()
        return tuple(sorted({self.head_dim, max(padded // 2, 1), max(padded // 4, 1)}))

    def rebuild_buffers(self, device: torch.device) -> None:
        """Begin anew on ``device``."""
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

    @property
    def _current(self) -> list[Tensor]:
        return [self.rank_LH, self.bits_LH, self.basis_LHDD, self.factor_LH]

    def chosen(self) -> Chosen:
        """What every layer computes with from now on: copies, which ``update`` leaves alone."""
        return Chosen(*(each.clone() for each in self._current))

    def begin(self, chosen: Chosen, position: Tensor | None) -> None:
        """A call on cached sequences: those that begin (None or 0) take what is chosen now."""
        for kept, current in zip(chosen.tensors(), self._current, strict=True):
            kept.copy_(current if position is None else torch.where(position == 0, current, kept))

    def update(self, measured: Sequence[Mapping[str, Tensor]]) -> None:
        """Take what ``analyse`` found in every layer; every ``refresh_every`` calls it counts.

        A head whose measurements are not finite keeps what it has.
        """
        rules = self.rules
        entropy_LH = torch.stack([each["entropy"] for each in measured])
        largest_LH = torch.stack([each["largest"] for each in measured])
        due_LH = (self.step % rules.refresh_every == 0) & entropy_LH.isfinite()
        due_LH = due_LH & largest_LH.isfinite()
        if rules.adaptive_precision:
            bits_LH, calm_LH = settle(
                self.bits_LH,
                self._wanted_bits(largest_LH),
                self._wanted_bits(largest_LH * (1 + MARGIN)),
                self.bits_calm_LH,
            )
            _keep(self.bits_LH, due_LH, bits_LH)
            _keep(self.bits_calm_LH, due_LH, calm_LH)
        if rules.adaptive_rank:
            rows_LHRD = torch.stack([each["rows"] for each in measured])
            with torch.autocast(rows_LHRD.device.type, enabled=False):
                basis_LHDD, share_LHD = _refreshed(rows_LHRD, self.next_basis_LHDD)
            columns_LH = self._wanted_columns(share_LHD)
            rank_LH, calm_LH = settle(
                self.rank_LH,
                self._width(columns_LH, entropy_LH),
                self._width(columns_LH * (1 + MARGIN), entropy_LH * (1 + MARGIN)),
                self.rank_calm_LH,
            )
            kept_LH = share_LHD.gather(-1, rank_LH.long()[..., None] - 1)[..., 0]
            sound_LH = basis_LHDD.flatten(-2).isfinite().all(-1)
            _keep(self.next_basis_LHDD, sound_LH[..., None, None], basis_LHDD)
            due_LH = due_LH & sound_LH
            _keep(self.rank_LH, due_LH, rank_LH)
            _keep(self.rank_calm_LH, due_LH, calm_LH)
            _keep(self.basis_LHDD, due_LH[..., None, None], basis_LHDD)
            _keep(self.factor_LH, due_LH, kept_LH.rsqrt())
        self.step.add_(1)

    def _wanted_columns(self, share_LHD: Tensor) -> Tensor:
        """Columns that a head needs, not yet rounded up to a width."""
        rules = self.rules
        if rules.rank_estimation == "entropy":
            each_LHD = torch.diff(share_LHD, prepend=torch.zeros_like(share_LHD[..., :1]))
            columns_LH = torch.special.entr(each_LHD.clamp_min(0)).sum(-1).exp()
        else:
            columns_LH = 1.0 + (share_LHD < rules.rank_threshold).sum(-1)
        return columns_LH

    def _width(self, columns_LH: Tensor, entropy_LH: Tensor) -> Tensor:
        """The least width that holds the columns; the widest if none does, or nothing may go."""
        *narrower, widest = self.widths
        columns_LH = columns_LH.clamp_min(self.rules.rank_ratio * self.head_dim)
        width_LH = torch.full_like(self.rank_LH, widest)
        for width in reversed(narrower):
            width_LH = torch.where(columns_LH <= width, width, width_LH)
        if self.rules.rank_estimation == "entropy":
            width_LH = torch.where(entropy_LH < self.rules.rank_threshold, width_LH, widest)
        return width_LH

    def _wanted_bits(self, largest_LH: Tensor) -> Tensor:
        bits_LH = torch.full_like(self.bits_LH, 32)
        for bits in (16, 8) if self.rules.allow_fp8 else (16,):
            bits_LH = torch.where(largest_LH <= TOLERANCE / (2 * HALF_STEP[bits]), bits, bits_LH)
        return bits_LH


def settle(
    current: Tensor, wanted: Tensor, relaxed: Tensor, calm: Tensor, patience: int = PATIENCE
) -> tuple[Tensor, Tensor]:
    """The next level of every head, and for how many analyses in a row it could have been lower.

    ``wanted`` is what an analysis asks for and ``relaxed``, never lower, what it would ask for had
    it found a margin more; all are integers of one shape.
    """
    calm = torch.where(relaxed < current, calm + 1, 0)
    lowers = calm >= patience
    level = torch.where(lowers, relaxed, current)
    level = torch.where(wanted > current, wanted, level)
    return level, torch.where(lowers, 0, calm)


def analyse(
    q_BHSD: Tensor, k_BHTD: Tensor, scale: float, causal: bool, mask: Tensor | None = None
) -> dict[str, Tensor]:
    """What sampled queries find in the keys, per head, and rows for the basis; no gradients.

    ``entropy`` and ``largest`` [H], ``rows`` [H, 2 R, D], queries first, FP32. ``mask``, Boolean,
    broadcasts to [B, H, S, T]: True where a key is seen. Queries that see one key have no entropy.
    """
    q_BHSD, k_BHTD = q_BHSD.detach(), k_BHTD.detach()
    length, keys, device = q_BHSD.shape[2], k_BHTD.shape[2], q_BHSD.device
    n = min(SAMPLES, length)
    if length % n == 0:  # a view, where there is one: this runs in every layer, bound by launches
        every = length // n
        at_N = torch.arange(every - 1, length, every, device=device)
        sampled_BHND = q_BHSD[:, :, every - 1 :: every]
    else:
        at_N = torch.arange(1, n + 1, device=device) * length // n - 1
        sampled_BHND = q_BHSD.index_select(2, at_N)
    if causal:
        hidden = torch.arange(keys, device=device) > (at_N + (keys - length))[:, None]
    else:
        hidden = torch.zeros(1, keys, dtype=torch.bool, device=device)
    if mask is not None:
        wide = mask.expand(*mask.shape[:-2], length, keys)
        hidden = hidden | ~wide.index_select(-2, at_N)
    scores = (sampled_BHND @ k_BHTD.mT).float() * scale
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    count = keys - hidden.sum(-1)
    share_BHN = torch.special.entr(weights).sum(-1) / count.clamp_min(2).log()
    usable_BHN = (count > 1).expand_as(share_BHN)
    return {
        # NaN where nothing could be measured: there is nothing to adapt to.
        "entropy": (share_BHN * usable_BHN).sum((0, 2)) / usable_BHN.sum((0, 2)),
        "largest": vector_norm(scores.masked_fill(hidden, 0), math.inf, (0, 2, 3)),
        "rows": torch.cat([_tokens(q_BHSD), _tokens(k_BHTD)], 1),
    }


def score_error(
    q_BHSD: Tensor, k_BHTD: Tensor, choice: Choice, scale: float, rules: Rules
) -> Tensor:
    """By how much any score may differ from that of all columns unrounded, in nats, [H].

    For every token: |s - s'| <= scale (|q - q P| |k - k P| + (|1 - f| + f (2 u + u^2)) |q| |k|),
    P the kept columns, f the factor of the scale, u the rounding of a row; each output then differs
    by at most (e^(2 |s - s'|) - 1) max |v|. Queries and keys are in the basis; ``rules`` and their
    dtype say what rounding there is.
    """
    dim, narrow = q_BHSD.shape[-1], q_BHSD.element_size() > 2
    past_HD = None
    if rules.adaptive_rank:
        past_HD = torch.arange(dim, device=q_BHSD.device) >= choice.rank[:, None]
    q_H, q_left_H = _longest(q_BHSD, past_HD)
    k_H, k_left_H = _longest(k_BHTD, past_HD)
    rounding_H = torch.zeros_like(q_H)
    if rules.narrows and (narrow or rules.allow_fp8):
        for bits in (16, 8) if rules.allow_fp8 else (16,):
            unit = HALF_STEP[bits] + math.sqrt(dim) * LEAST_STEP[bits]
            of_bits = 2 * unit + unit * unit if narrow or bits == 8 else 0.0
            rounding_H = torch.where(choice.bits <= bits, of_bits, rounding_H)
    stretched_H = (1 - choice.factor).abs() + choice.factor * rounding_H
    return scale * (q_left_H * k_left_H + stretched_H * q_H * k_H)


def _longest(x_BHSD: Tensor, past_HD: Tensor | None) -> tuple[Tensor, Tensor]:
    """The longest row of a head, and the longest of what lies past the rank: both [H], FP32."""
    x_BHSD = x_BHSD.detach()
    dtype = torch.promote_types(x_BHSD.dtype, torch.float32)
    longest_H = vector_norm(x_BHSD, dim=-1, dtype=dtype).amax((0, 2)).float()
    if past_HD is None:
        return longest_H, torch.zeros_like(longest_H)
    past_BHSD = x_BHSD * past_HD[:, None]
    return longest_H, vector_norm(past_BHSD, dim=-1, dtype=dtype).amax((0, 2)).float()


def _tokens(x_BHSD: Tensor) -> Tensor:
    """Evenly spaced tokens of a batch: [H, R, D] in FP32."""
    batch, heads, length, dim = x_BHSD.shape
    every, uneven = divmod(batch * length, TOKENS)
    if uneven or every == 0 or (length % every and every % length):
        at_R = torch.arange(TOKENS, device=x_BHSD.device) * (batch * length) // TOKENS
        return x_BHSD[at_R // length, :, at_R % length].transpose(0, 1).float()
    taken = x_BHSD[:, :, ::every] if every <= length else x_BHSD[:: every // length, :, :1]
    return taken.transpose(0, 1).float().reshape(heads, TOKENS, dim)


def _refreshed(rows_LHRD: Tensor, start_LHDD: Tensor) -> tuple[Tensor, Tensor]:
    """A basis, and the share of the sum of squares that its first 1 ... D columns hold [L, H, D].

    Queries and keys count the same, however long they are.
    """
    dim = rows_LHRD.shape[-1]
    halves = rows_LHRD.unflatten(-2, (2, -1))
    norm = vector_norm(halves, dim=(-2, -1), keepdim=True)
    rows_LHRD = (halves / norm.clamp_min(torch.finfo(norm.dtype).tiny)).flatten(-3, -2)
    ridge_DD = torch.eye(dim, device=rows_LHRD.device) * math.sqrt(RIDGE / dim)
    rows_LHRD = torch.cat([rows_LHRD, ridge_DD.expand(*rows_LHRD.shape[:-2], dim, dim)], -2)
    basis_LHDD, _ = kernels.low_rank(rows_LHRD, dim, iterations=1, start=start_LHDD)
    energy_LHD = (rows_LHRD @ basis_LHDD).square().sum(-2).cumsum(-1)
    return basis_LHDD, energy_LHD / energy_LHD[..., -1:]


def _keep(held: Tensor, due: Tensor, value: Tensor) -> None:
    held.copy_(torch.where(due, value, held))
