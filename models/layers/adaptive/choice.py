"""Ranks and precisions that heads compute with, for all layers and for one."""

# Shapes: L rows (layers), H heads, D head width, P parts of a row.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.layers.adaptive.rules import Rules


class Choice(NamedTuple):
    """Rank and precision of one layer's heads; no later analysis changes these tensors.

    ``to_queries`` and ``to_keys`` transform queries and keys into the basis, in their dtype; the
    former includes the factor of the scale. They are None where ranks do not adapt. ``cut``:
    ``to_keys`` leaves zeros beyond the rank, which cancel the queries there; then they are parts of
    ``to_both``. The last two are for the measurements, None where nothing is measured.
    """

    rank: Tensor  # [H], int32: columns
    bits: Tensor  # [H], int32
    to_queries: Tensor | None = None  # [H, D, D]
    to_keys: Tensor | None = None
    to_both: Tensor | None = None  # [2 H, D, D]
    cut: bool = False
    scale: Tensor | None = None  # for products in the basis, without the factor
    parts: Tensor | None = None  # Boolean: all columns, and those beyond the rank


@dataclass(frozen=True)
class Chosen:
    """Choices of all layers.

    In a decode state they are the choices with which its keys were made.
    """

    rank: Tensor  # [L, H], int32: columns
    bits: Tensor  # [L, H], int32
    basis: Tensor  # orthonormal columns, those that matter most first
    factor: Tensor  # factor of the scale 1 / sqrt(D)

    def layers(
        self, rules: Rules, dtype: torch.dtype, *, cached: bool = False, adapts: bool = False
    ) -> list[Choice]:
        """Return the choice of each layer, whose heads compute in ``dtype``.

        All are computed at once. ``cached``: for a call that caches keys; ``adapts``: for one that
        measures.
        """
        fields: dict[str, Sequence[Any]] = {"rank": self.rank.unbind(), "bits": self.bits.unbind()}
        cut = rules.adaptive_rank and cached and not rules.rounds(dtype)
        if rules.adaptive_rank:
            factor_LH11, to_keys = self.factor[..., None, None], self.basis
            to_queries = to_keys * factor_LH11
            dim = to_keys.shape[-1]
            if cut or adapts:
                column_D = torch.arange(dim, device=to_keys.device)
            if cut:
                to_keys = to_keys * (column_D < self.rank[..., None, None])
                to_both = torch.cat((to_queries, to_keys), dim=1).to(dtype)
                fields["to_both"] = to_both.unbind()
                to_queries, to_keys = to_both.chunk(2, dim=1)
            fields["to_keys"] = to_keys.to(dtype).unbind()
            fields["to_queries"] = to_queries.to(dtype).unbind()
            if adapts:
                fields["scale"] = (dim**-0.5 / factor_LH11[..., None]).unbind()
                first_LPH = torch.stack([torch.zeros_like(self.rank), self.rank], 1)
                fields["parts"] = (column_D >= first_LPH[:, :, None, :, None, None]).unbind()
        rows = zip(*fields.values(), strict=True)
        return [Choice(**dict(zip(fields, row, strict=True)), cut=cut) for row in rows]

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        return [self.rank, self.bits, self.basis, self.factor]

    def carried(self) -> list[Tensor]:
        """Return nothing: no token changes it."""
        return []
