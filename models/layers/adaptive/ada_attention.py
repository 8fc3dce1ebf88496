"""AdaAttn's attention as a separate layer, with the state of its adaptation."""

# Shapes: B batch, S queries, T keys, E model width, H heads.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from models.errors import ConfigurationError
from models.initialisation import started
from models.layers.adaptive.adaptation import Adaptation
from models.layers.adaptive.heads import AdaptiveHeads
from models.layers.adaptive.measurements import Sight
from models.layers.adaptive.rules import Rules, check_rules
from models.layers.basic import computed_dtype
from models.model import transformed


class AdaAttention(nn.Module):
    """Adaptive attention as a separate layer with its state: (B, S, E) over (B, T, E).

    ``default_precision`` ("inputs", "fp16" or "fp8") is the first precision of heads; it changes
    only with ``adaptive_precision``. Raises ``ConfigurationError`` for unsupported arguments.
    """

    def __init__(
        self,
        embed_dim: int = 512,
        num_heads: int = 8,
        rank_ratio: float = 0.5,
        rank_estimation: str = "entropy",
        rank_threshold: float = 0.95,
        adaptive_rank: bool = True,
        adaptive_precision: bool = True,
        default_precision: str = "inputs",
        allow_fp8: bool = False,
        causal: bool = True,
        *,
        refresh_every: int = 16,
    ) -> None:
        super().__init__()
        rules = Rules(
            rank_ratio=rank_ratio,
            rank_estimation=rank_estimation,
            rank_threshold=rank_threshold,
            adaptive_rank=adaptive_rank,
            adaptive_precision=adaptive_precision,
            default_precision=default_precision,
            allow_fp8=allow_fp8,
            refresh_every=refresh_every,
        )
        check_rules("AdaAttention", rules)
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ConfigurationError(
                f"AdaAttention: embed_dim = {embed_dim} cannot be divided into num_heads = "
                f"{num_heads} heads"
            )
        self.heads = AdaptiveHeads(embed_dim, num_heads, rules, causal=causal, measures_values=True)
        self.adaptation = Adaptation(1, num_heads, embed_dim // num_heads, rules)
        self.adapting = True
        self._counted: dict[str, dict[str, int]] = {}  # counts in the form of ``kernels.usage``
        started(self)

    def forward(
        self, q_BSE: Tensor, k_BTE: Tensor, v_BTE: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output (B, S, E), and per head [H] its rank, precision and error.

        ``mask``, Boolean, broadcasts to [B, H, S, T]: True where a key may be seen; with a mask
        torch's own attention computes the scores. Statistics, FP32 on the device: ``rank`` in
        columns and ``precision`` in bits. A call that adapts (``adapting``, two keys or more) adds
        ``entropy``, the ``largest`` score, and two bounds of what rank and precision change:
        ``score_error`` of any score, in nats, and ``output_error`` of any element before the output
        projection. Raises ``ConfigurationError`` for shapes and masks that do not match.
        """
        self._check(q_BSE, k_BTE, v_BTE, mask)
        adaptation, sight = self.adaptation, None
        if self.adapting and k_BTE.shape[1] > 1 and not transformed():
            (batch, queries, _), keys = q_BSE.shape, k_BTE.shape[1]
            sight = Sight.of(batch, queries, keys, self.heads.causal, q_BSE.device, mask)
        rules, dtype, adapts = adaptation.rules, computed_dtype(q_BSE), sight is not None
        (choice,) = adaptation.chosen().layers(rules, dtype, adapts=adapts)
        before = None if torch.compiler.is_compiling() else kernels.usage()
        out_BSE, sampled = self.heads(q_BSE, k_BTE, v_BTE, choice, mask=mask, sight=sight)
        if before is not None:
            self._count(before, masked=mask is not None)
        statistics = {"rank": choice.rank.float(), "precision": choice.bits.float()}
        if sight is not None:
            measured = adaptation.measures([sampled], sight)
            adaptation.update(measured)
            (entropy_H,), (largest_H,) = measured["entropy"], measured["largest"]
            (error_H,) = measured["score_error"]
            statistics |= {
                "entropy": entropy_H,
                "largest": largest_H,
                "score_error": error_H,
                "output_error": torch.expm1(2 * error_H) * sampled["values"].float(),
            }
        return out_BSE, statistics

    def get_statistics(self) -> dict[str, Any]:
        """Return which implementations ran this module's attention, as ``kernels.attention_usage``.

        A call with a mask is one of "sdpa_masked": torch does not report which of its kernels
        ran, so that it does not count in ``flash_ratio``. Compiled calls are not counted.
        """
        return kernels.attention_usage(self._counted)

    def _count(self, before: Mapping[str, Mapping[str, int]], *, masked: bool) -> None:
        """Add the usage of one call; ``before`` is ``kernels.usage`` before it."""
        after = kernels.usage()
        for name in ("attention", "adaptive_attention"):
            counts = self._counted.setdefault(name, {})
            for implementation, calls in after.get(name, {}).items():
                new = calls - before.get(name, {}).get(implementation, 0)
                if new:
                    counts[implementation] = counts.get(implementation, 0) + new
        if masked:
            counts = self._counted["attention"]
            counts["sdpa_masked"] = counts.get("sdpa_masked", 0) + 1

    def _check(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
        dim = self.heads.qkv.in_features
        if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape or q.shape[0] != k.shape[0]:
            raise ConfigurationError(
                f"AdaAttention: expected q (B, S, {dim}) and k, v (B, T, {dim}), but got "
                f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
            )
        if q.shape[2] != dim or k.shape[2] != dim:
            raise ConfigurationError(
                f"AdaAttention: the last dimension must be embed_dim = {dim}, but q has "
                f"{q.shape[2]} and k {k.shape[2]}"
            )
        if self.heads.causal and q.shape[1] > k.shape[1]:
            raise ConfigurationError(
                f"AdaAttention: with causal = True the number of keys must be at least the "
                f"number of queries, {q.shape[1]}, but is {k.shape[1]}"
            )
        if mask is None:
            return
        full = (q.shape[0], self.heads.n_heads, q.shape[1], k.shape[1])
        sizes = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        fits = len(sizes) == 4 and all(a in (1, b) for a, b in zip(sizes, full, strict=True))
        if mask.dtype != torch.bool or mask.dim() < 2 or not fits:
            raise ConfigurationError(
                f"AdaAttention: mask must be Boolean and broadcast to {full}, but is "
                f"{tuple(mask.shape)} {mask.dtype}"
            )
