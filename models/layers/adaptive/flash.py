"""Attention by the fastest kernel in the precision that suits the device, as one layer."""

# Shapes: B batch, S queries, T keys, E model width.

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

import kernels
from kernels import hardware
from models.errors import ConfigurationError
from models.layers.adaptive.ada_attention import AdaAttention

# The precisions of the AdaAttn document; "auto" follows the device: BF16 from Ampere on, FP16 on
# older GPUs with tensor cores, FP32 elsewhere.
MODES = {"auto": None, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class AdaptiveFlashAttention(AdaAttention):
    """The AdaAttn document's attention layer: (B, S, E) over (B, T, E), with every column.

    ``enable_flash`` False computes the full matrix of weights instead. Raises
    ``ConfigurationError`` for unsupported arguments.
    """

    def __init__(
        self,
        embed_dim: int = 512,
        num_heads: int = 8,
        precision_mode: str = "auto",
        enable_flash: bool = True,
        *,
        causal: bool = True,
    ) -> None:
        if precision_mode not in MODES:
            raise ConfigurationError(
                f"AdaptiveFlashAttention: precision_mode = {precision_mode!r} is not one of "
                f"{tuple(MODES)}"
            )
        super().__init__(
            embed_dim, num_heads, adaptive_rank=False, adaptive_precision=False, causal=causal
        )
        self.precision_mode, self.enable_flash = precision_mode, enable_flash

    def forward(
        self, q_BSE: Tensor, k_BTE: Tensor, v_BTE: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the same as ``AdaAttention.forward``, in the inputs' dtype."""
        dtype = MODES[self.precision_mode] or hardware.of(q_BSE.device).precision
        with contextlib.ExitStack() as stack:
            if dtype != torch.float32:
                stack.enter_context(torch.autocast(q_BSE.device.type, dtype))
            if not self.enable_flash:
                stack.enter_context(kernels.using(attention="manual"))
            out_BSE, statistics = super().forward(q_BSE, k_BTE, v_BTE, mask)
        return out_BSE.to(q_BSE.dtype), statistics

    def get_flash_statistics(self) -> dict[str, Any]:
        """Return ``get_statistics()``: calls by kernel, and the fraction of fused calls."""
        return self.get_statistics()
