"""MAHIA-X's attention: every head mixes tokens by attention and by a Fourier filter, with a gate.

    head_h = (1 - g_h) softmax(q_h k_h^T / sqrt(D)) v_h + g_h irfft(f rfft(v_h)),   g = sigmoid(G x)

f keeps frequencies up to a quarter of the length and damps higher ones to a tenth. A filter along
the sequence sees all of it (Lee-Thorp et al. 2021, arXiv 2105.03824), and so does the encoder form.
The causal form keeps only the part of the filter's response that looks back. That response still
depends on the length of the call, so a prefix alone is filtered differently.
"""

# Shapes: B batch, S sequence, E model width, H heads, D head width.

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

import kernels
from models.errors import ConfigurationError
from models.initialisation import started
from models.layers.attention import Attention, RotaryCache
from models.layers.basic import INIT_STD, Linear

CHUNK = 512  # queries whose weights exist at a time while statistics are computed


class AttentionStatistics(NamedTuple):
    """Statistics of an attention map for distillation: each (B, H, S), a number per query."""

    entropy: Tensor  # entropy of the weights, in nats
    peak: Tensor  # the largest weight
    distance: Tensor  # mean distance of the attended tokens, in tokens


class MetaAttentionKernel(nn.Module):
    """Attention and Fourier mixing behind a learned gate, (B, S, E) -> (B, S, E).

    ``during_distillation`` returns ``AttentionStatistics`` too, differentiable, which computes the
    weights a second time, ``CHUNK`` queries at a time. ``causal`` is the language-model form.
    Without ``rotary`` it has no other information about positions. Raises ``ConfigurationError`` if
    ``n_heads`` does not divide ``dim``.
    """

    # Arguments of kernels.using that choose a path by hand; by default each operator chooses.
    FUSED: ClassVar[dict[str, str]] = {"attention": "triton", "fourier_mix": "matmul"}
    STANDARD: ClassVar[dict[str, str]] = {"attention": "manual", "fourier_mix": "torch"}

    def __init__(
        self,
        dim: int,
        use_fourier: bool = True,
        during_distillation: bool = False,
        *,
        n_heads: int = 4,
        causal: bool = False,
        rotary: RotaryCache | None = None,
        std_out: float = INIT_STD,
    ) -> None:
        super().__init__()
        if dim < 1 or n_heads < 1 or dim % n_heads:
            raise ConfigurationError(
                f"MetaAttentionKernel: dim = {dim} cannot be divided into n_heads = {n_heads} heads"
            )
        self.dim, self.causal, self.during_distillation = dim, causal, during_distillation
        self.attention = Attention(dim, n_heads, n_heads, rotary, std_out)
        self.gate = Linear(dim, n_heads, bias=True) if use_fourier else None
        started(self)

    def division(self) -> str:
        """Return why every rank has the complete layer."""
        return "attention with Fourier gates reports the gates of all heads jointly"

    def forward(self, x_BSE: Tensor) -> Tensor | tuple[Tensor, AttentionStatistics]:
        """Compute (B, S, E) -> (B, S, E), and the statistics while distilling."""
        if x_BSE.dim() != 3 or x_BSE.shape[-1] != self.dim:
            raise ConfigurationError(
                f"MetaAttentionKernel: expected (B, T, {self.dim}), got {tuple(x_BSE.shape)}"
            )
        q_BHSD, k_BHSD, v_BHSD = self.attention.heads(x_BSE)
        y_BSE, _ = self._mix(x_BSE, q_BHSD, k_BHSD, v_BHSD)
        if not self.during_distillation:
            return y_BSE
        return y_BSE, attention_statistics(q_BHSD, k_BHSD, self.causal)

    def gated(self, x_BSE: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return (B, S, E), and each head's weight of the Fourier branch: (B, S, H)."""
        return self._mix(x_BSE, *self.attention.heads(x_BSE))

    def _mix(
        self, x_BSE: Tensor, q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        y_BSHD = kernels.attention(q_BHSD, k_BHSD, v_BHSD, causal=self.causal).transpose(1, 2)
        if self.gate is None:
            return self.attention.out(y_BSHD.flatten(2)), None
        v_BSE = v_BHSD.transpose(1, 2).flatten(2)
        filtered_BSE = kernels.fourier_mix(v_BSE, causal=self.causal)
        g_BSH = self.gate(x_BSE).sigmoid().to(y_BSHD.dtype)
        filtered_BSHD = filtered_BSE.to(y_BSHD.dtype).unflatten(-1, y_BSHD.shape[2:])
        y_BSHD = torch.lerp(y_BSHD, filtered_BSHD, g_BSH[..., None])
        return self.attention.out(y_BSHD.flatten(2)), g_BSH


def attention_statistics(q_BHSD: Tensor, k_BHSD: Tensor, causal: bool) -> AttentionStatistics:
    """Compute statistics of softmax(q k^T / sqrt(D)), in FP32 at least; memory linear in S."""
    wide = torch.promote_types(q_BHSD.dtype, torch.float32)
    place_S = torch.arange(k_BHSD.shape[2], device=q_BHSD.device)
    parts = []
    for q_BHCD, place_C in zip(q_BHSD.split(CHUNK, 2), place_S.split(CHUNK), strict=True):
        scores_BHCS = (q_BHCD @ k_BHSD.transpose(-1, -2)).to(wide) * q_BHSD.shape[-1] ** -0.5
        away_CS = place_C[:, None] - place_S
        if causal:
            scores_BHCS = scores_BHCS.masked_fill(away_CS < 0, torch.finfo(wide).min)
        weight_BHCS = scores_BHCS.softmax(-1)
        # A masked score times its weight of zero is zero, because the score is finite.
        mean_BHC = (weight_BHCS * scores_BHCS).sum(-1)
        parts.append(
            (
                scores_BHCS.logsumexp(-1) - mean_BHC,
                weight_BHCS.amax(-1),
                (weight_BHCS * away_CS.abs()).sum(-1),
            )
        )
    return AttentionStatistics(*(torch.cat(part, -1) for part in zip(*parts, strict=True)))
