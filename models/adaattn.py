"""AdaAttn: a transformer whose attention heads adapt their rank and their precision as they run.

Every head is analysed on the device now and then. Heads whose queries and keys lie in few
directions compute their scores with fewer columns, heads with small scores with fewer bits; one
flash-style kernel does both. The rules are in ``models.layers.adaptive.adaptation``. The result
of a token never depends on later tokens. Decoding uses the choice of the model's last call without
a cache (all columns before the first). ``AdaAttention`` is this attention as a separate layer.
"""

# Shapes: B batch, S queries, T keys, E model width, H heads.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from models.configs.adaattn import AdaAttnConfig, check
from models.costs.adaattn import costs
from models.decode_state import Cache
from models.family import Family
from models.language_model import DECODING, BlockOutput, LanguageModel, step_operators
from models.layers.adaptive.ada_attention import AdaAttention
from models.layers.adaptive.adaptation import PATIENCE, Adaptation
from models.layers.adaptive.choice import Choice, Chosen
from models.layers.adaptive.heads import AdaptiveHeads
from models.layers.adaptive.measurements import Sight
from models.layers.attention import KVState, RotaryCache
from models.layers.basic import (
    RMSNorm,
    SwiGLUMLP,
    TransformerBlock,
    computed_dtype,
    mlp_width,
    residual_std,
)
from models.model import Metric, Promise, transformed

__all__ = ["FAMILY", "PATIENCE", "AdaAttention", "AdaAttnConfig"]

MEASURES = ("entropy", "rank", "precision", "score_error")  # per head


class Block(TransformerBlock):
    """Block ``x += attention(norm(x)); x += mlp(norm(x))``."""

    def __init__(self, config: AdaAttnConfig, rotary: RotaryCache) -> None:
        super().__init__()
        std_out = residual_std(config.n_layers)
        self.measures = dict.fromkeys(MEASURES, config.n_heads)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = AdaptiveHeads(
            config.dim,
            config.n_heads,
            config.rules,
            rotary=rotary,
            norm_eps=config.norm_eps,
            std_out=std_out,
            qk_dimensions=config.qk_dimensions,
        )
        self.mlp_norm = RMSNorm(config.dim, config.norm_eps)
        self.mlp = SwiGLUMLP(config.dim, mlp_width(config.dim, config.mlp_ratio), std_out)

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> KVState:
        """Return the attention's keys and values."""
        return self.attention.new_state(batch, length, device, dtype)

    def fused_step(
        self,
        x_BSE: Tensor,
        state: KVState | None,
        position: Tensor | None,
        choice: Choice | None = None,
        kv_length: Tensor | None = None,
        sight: Sight | None = None,
    ) -> Tensor:
        """Return the result of ``forward`` for one more token, with fused linear layers."""
        cached = {"state": state, "position": position, "kv_length": kv_length}
        x_BSE = self.attention.fused_step(x_BSE, self.attention_norm, choice, **cached)
        return self.mlp.fused_step(x_BSE, self.mlp_norm)

    def branches(
        self,
        u_BSE: Tensor,
        x_BSE: Tensor,
        state: KVState | None = None,
        position: Tensor | None = None,
        choice: Choice | None = None,
        kv_length: Tensor | None = None,
        sight: Sight | None = None,
    ) -> tuple[Tensor, BlockOutput]:
        """Return the tokens after attention, and the MLP's addition; ``u_BSE`` is their norm."""
        cached = {"state": state, "position": position, "kv_length": kv_length}
        y_BSE, measured = self.attention(u_BSE, u_BSE, u_BSE, choice, **cached, sight=sight)
        x_BSE, y_BSE = self.after_attention(y_BSE, x_BSE)
        return x_BSE, BlockOutput(y_BSE, None, measured)

    def forward(
        self,
        x_BSE: Tensor,
        state: KVState | None = None,
        position: Tensor | None = None,
        choice: Choice | None = None,
        kv_length: Tensor | None = None,
        sight: Sight | None = None,
    ) -> Tensor | BlockOutput:
        """Compute (B, S, E) -> (B, S, E); with a ``sight``, return the measurements too."""
        y = self.attention_norm(x_BSE)
        cached = {"state": state, "position": position, "kv_length": kv_length}
        y, measured = self.attention(y, y, y, choice, **cached, sight=sight)
        x_BSE = x_BSE + y
        x_BSE = x_BSE + self.mlp(self.mlp_norm(x_BSE))
        return BlockOutput(x_BSE, None, measured) if measured else x_BSE


class AdaAttnModel(LanguageModel):
    """Language model that adapts in every call without a cache, unless it is frozen.

    It does not adapt under ``torch.func``, whose functions must not write elsewhere. A sequence in
    a cache keeps the choice with which it began, because that choice determines the cached keys; a
    saved cache holds the choice too.
    """

    unstaged = "its heads adapt once per step, to the full batch and in all layers jointly"

    def __init__(self, config: AdaAttnConfig) -> None:
        head_dim = config.dim // config.n_heads
        rotary = RotaryCache(head_dim, config.max_sequence, config.rope_theta)
        super().__init__(
            rows=config.rows,
            dim=config.dim,
            blocks=[Block(config, rotary) for _ in range(config.n_layers)],
            max_sequence=config.max_sequence,
            norm_eps=config.norm_eps,
            tie_embeddings=config.tie_embeddings,
        )
        self.adaptation = Adaptation(config.n_layers, config.n_heads, head_dim, config.rules)
        self.adapting = True
        self._sight: Sight | None = None  # the sight of the current call

    def freeze(self, frozen: bool = True) -> None:
        """Stop or resume adapting; frozen calls are pure and run no analysis."""
        self.adapting = not frozen

    def common_state(self) -> Chosen:
        """Return the choice that the cached keys were made with."""
        return self.adaptation.chosen()

    def adapted(self) -> dict[str, Tensor]:
        """Return the state of the adaptation."""
        return dict(self.adaptation.named_buffers())

    def calls_to_settle(self) -> int:
        """Return the calls until enough analyses have counted for one reduction of a head."""
        rules = self.adaptation.rules
        if not (self.adapting and (rules.adaptive_rank or rules.adaptive_precision)):
            return 0
        analyses = PATIENCE + 1  # the next ones confirm the first
        return max(0, analyses * rules.refresh_every - int(self.adaptation.step))

    def promise(self) -> Promise | None:
        """Return the error that ``score_error`` allows, as if layers erred independently."""
        worst_L = self.metrics()["score_error"].amax(1).double()
        return Promise(
            float(torch.expm1(2 * worst_L).square().sum().sqrt()),
            "ranks and precisions that change no score by more than "
            f"{float(worst_L.max()):.2g} nats",
        )

    def given(
        self, x_BSE: Tensor, cache: Cache | None, position: Tensor | None
    ) -> Sequence[tuple[Any, ...]]:
        """Return the choices and the measured tokens for the heads of each block.

        Values that the layers share are computed here, once.
        """
        (batch, length, _), rules = x_BSE.shape, self.adaptation.rules
        dtype = computed_dtype(x_BSE)
        self._sight = None
        if cache is None:
            if self.adapting and length > 1 and not transformed():
                self._sight = Sight.of(batch, length, length, True, x_BSE.device)
            adapts = self._sight is not None
            choices = self.adaptation.chosen().layers(rules, dtype, adapts=adapts)
            return [(choice, None, self._sight) for choice in choices]
        assert isinstance(cache.common, Chosen)
        self.adaptation.begin(cache.common, position)
        kv_length = None if position is None else position + length
        choices = cache.common.layers(rules, dtype, cached=True)
        return [(choice, kv_length, None) for choice in choices]

    def observe(self, measured: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Record the metrics, and choose ranks and precisions of the next call."""
        sight, self._sight = self._sight, None
        if sight is None:
            return
        adaptation = self.adaptation
        metrics = adaptation.measures(list(measured.values()), sight)
        values = metrics | {"rank": adaptation.rank_LH, "precision": adaptation.bits_LH}
        for name, metric in self.metrics().items():
            metric.copy_(values[name])
        adaptation.update(metrics)


def operators(config: AdaAttnConfig, workload: str) -> frozenset[str]:
    """Return the operators that a step of the workload calls.

    The PyTorch form of ``adaptive_attention`` calls ``attention``, too.
    """
    operators = {"rms_norm", "add_rms_norm", "swiglu", "qk_norm_rope", "attention"}
    decodes = workload in DECODING
    fuses_heads = not decodes or not config.rules.rounds(torch.bfloat16)
    operators |= step_operators(
        workload,
        fuses_steps=True,
        fuses_gates=True,
        fuses_heads=fuses_heads,  # keys that are rounded are written separately
    )
    if not decodes:
        operators.add("adaptive_attention")
    if workload in ("forward", "train") and config.adaptive_rank:
        operators.add("low_rank")
    return frozenset(operators)


PRESETS = {
    "tiny": AdaAttnConfig(vocabulary=256, dim=128, n_layers=4, n_heads=4, max_sequence=512),
    "small": AdaAttnConfig(),  # the document's layer, 512 wide with 8 heads
    "base": AdaAttnConfig(dim=768, n_layers=12, n_heads=12),
    "medium": AdaAttnConfig(dim=1024, n_layers=24, n_heads=16),
    "large": AdaAttnConfig(dim=2048, n_layers=24, n_heads=16, max_sequence=16384),
}

SUGGESTIONS = {
    "tiny": {"cuda": (16, 256), "cpu": (2, 64)},
    "small": {"cuda": (8, 1024), "cpu": (1, 64)},
    "base": {"cuda": (8, 1024), "cpu": (1, 32)},
    "medium": {"cuda": (4, 2048), "cpu": (1, 32)},
    "large": {"cuda": (2, 4096), "cpu": (1, 16)},
}

METRICS = (
    Metric(
        name="entropy",
        title="Attention entropy",
        unit="",
        help="Entropy of each head's weights relative to equal weights; 1: all keys count equally.",
        columns="head",
    ),
    Metric(
        name="rank",
        title="Rank",
        unit="columns",
        help="Number of columns that each head computes its scores with; fewer cost less.",
        columns="head",
    ),
    Metric(
        name="precision",
        title="Precision",
        unit="bits",
        help="Bits of each head's queries and keys; 32 means the precision of the inputs.",
        columns="head",
    ),
    Metric(
        name="score_error",
        title="Largest error of a score",
        unit="nats",
        help="Largest possible change of a score by rank and precision; far below 1 is harmless.",
        columns="head",
    ),
)

FAMILY = Family(
    name="adaattn",
    title="AdaAttn",
    help=__doc__,
    config=AdaAttnConfig,
    presets=PRESETS,
    suggestions=SUGGESTIONS,
    construct=AdaAttnModel,
    check=check,
    costs=costs,
    operators=operators,
    metrics=METRICS,
)
