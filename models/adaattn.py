"""AdaAttn: a transformer whose attention heads adapt their rank and their precision as they run.

Every head is analysed on the device now and then. Heads whose queries and keys lie in few
directions compute their scores with fewer columns, heads with small scores with fewer bits; one
flash-style kernel does both. The rules stand in ``models.layers.adaptive``. What a token gives
never depends on later ones, and a model that decodes computes with what its last call without a
cache has chosen (all columns before the first).
"""

# Shapes: B batch, S queries, T keys, E model width, H heads.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from models import config_fields
from models.costs.adaattn import costs
from models.errors import ConfigurationError
from models.family import Family, setting
from models.initialisation import started
from models.language_model import BlockOutput, Cache, LanguageModel, loss_operators
from models.layers.adaptive import (
    ESTIMATIONS,
    PATIENCE,
    PRECISIONS,
    Adaptation,
    Choice,
    Chosen,
    Rules,
    Sight,
)
from models.layers.adaptive_attention import AdaptiveHeads
from models.layers.attention import KVState, RotaryCache
from models.layers.basic import RMSNorm, SwiGLUMLP, computed_dtype, mlp_width, residual_std
from models.model import Metric, Promise, transformed


class AdaAttention(nn.Module):
    """Adaptive attention by itself, with a state of its own: (B, S, E) over (B, T, E).

    ``default_precision`` ("inputs", "fp16" or "fp8") is what heads begin with, and keep unless
    ``adaptive_precision``. Raises ``ConfigurationError`` for what cannot be built.
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
                f"AdaAttention: embed_dim = {embed_dim} does not divide into num_heads = "
                f"{num_heads} heads"
            )
        self.heads = AdaptiveHeads(embed_dim, num_heads, rules, causal=causal, measures_values=True)
        self.adaptation = Adaptation(1, num_heads, embed_dim // num_heads, rules)
        self.adapting = True
        self._counted: dict[str, dict[str, int]] = {}  # as ``kernels.usage``
        started(self)

    def forward(
        self, q_BSE: Tensor, k_BTE: Tensor, v_BTE: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output (B, S, E), and per head [H] its rank, precision and error.

        ``mask``, Boolean, broadcasts to [B, H, S, T]: True where a key may be seen; beside it the
        scores are computed by torch's own attention. Statistics, FP32 on the device: ``rank`` in
        columns, ``precision`` in bits, and, where this call adapts (``adapting``, two keys or
        more), ``entropy``, ``largest`` score, and ``score_error`` and ``output_error``, bounds of
        what rank and precision change of any score, in nats, and of any element before the output
        projection. Raises ``ConfigurationError`` for shapes and masks that do not go together.
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

        A call with a mask is one of "sdpa_masked": torch does not tell which of its kernels ran, so
        that it is no part of ``flash_ratio``. Compiled calls are not counted.
        """
        return kernels.attention_usage(self._counted)

    def _count(self, before: Mapping[str, Mapping[str, int]], *, masked: bool) -> None:
        """Add what one call used, ``before`` which ``kernels.usage`` was that."""
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
                f"AdaAttention: with causal = True {q.shape[1]} queries need at least as many "
                f"keys, but there are {k.shape[1]}"
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


def check_rules(name: str, rules: Rules) -> None:
    """Raise ``ConfigurationError`` for rules that no attention can follow."""
    for field, allowed in (("rank_estimation", ESTIMATIONS), ("default_precision", (*PRECISIONS,))):
        value = getattr(rules, field)
        if value not in allowed:
            raise ConfigurationError(f"{name}: {field} = {value!r} is not one of {allowed}")
    for field in ("rank_ratio", "rank_threshold"):
        value = getattr(rules, field)
        if not 0 < value <= 1:
            raise ConfigurationError(f"{name}: {field} = {value} is not above 0 and at most 1")
    if rules.refresh_every < 1:
        raise ConfigurationError(f"{name}: refresh_every = {rules.refresh_every} is less than 1")
    if rules.default_precision == "fp8" and not rules.allow_fp8:
        raise ConfigurationError(
            f"{name}: default_precision = 'fp8' needs allow_fp8 = True, which permits FP8"
        )


@dataclass(frozen=True, kw_only=True)
class AdaAttnConfig(config_fields.RoundedVocabulary):
    """The sizes of one AdaAttn model, and the rules that its heads adapt by."""

    vocabulary: int = config_fields.vocabulary()
    vocabulary_multiple: int = config_fields.vocabulary_multiple()
    dim: int = config_fields.width(512)
    n_layers: int = config_fields.layers(6)
    n_heads: int = config_fields.heads(8, "Heads")
    rank_ratio: float = setting(
        0.5,
        "Least rank",
        "Share of a head's columns that are always kept.",
        minimum=0.01,
        maximum=1,
        weights=False,
    )
    rank_estimation: str = setting(
        "entropy",
        "Rank by",
        "The entropies of a head's weights and spectrum, or the energy of its queries and keys.",
        choices=ESTIMATIONS,
    )
    rank_threshold: float = setting(
        0.95,
        "Rank threshold",
        "Normalised entropy from which on all columns are kept, or share of energy to keep.",
        minimum=0.01,
        maximum=1,
    )
    adaptive_rank: bool = setting(True, "Adaptive rank", "Each head chooses its number of columns.")
    adaptive_precision: bool = setting(
        True, "Adaptive precision", "Each head chooses the bits of its queries and keys."
    )
    default_precision: str = setting(
        "inputs",
        "First precision",
        "What queries and keys are multiplied in at first, and always without adaptive precision.",
        choices=(*PRECISIONS,),
    )
    allow_fp8: bool = setting(
        False, "Allow FP8", "Heads with small scores may multiply queries and keys in FP8 E4M3."
    )
    refresh_every: int = setting(
        16,
        "Adapt every",
        "Calls from one analysis that counts to the next.",
        minimum=1,
        maximum=1_000_000,
    )
    qk_dimensions: int = setting(
        0,
        "Query/key dimensions",
        "Dimensions that queries and keys of three heads of four start in; 0 is all of a head's. "
        "Narrow heads are what adaptive rank computes with fewer columns.",
        minimum=0,
        maximum=65536,
    )
    mlp_ratio: float = config_fields.mlp_ratio()
    max_sequence: int = config_fields.max_sequence(8192)
    rope_theta: float = config_fields.rope_theta()
    norm_eps: float = config_fields.norm_eps()
    tie_embeddings: bool = config_fields.tie_embeddings(True)

    @property
    def rules(self) -> Rules:
        """Rules that decide ranks and precisions."""
        return Rules(
            rank_ratio=self.rank_ratio,
            rank_estimation=self.rank_estimation,
            rank_threshold=self.rank_threshold,
            adaptive_rank=self.adaptive_rank,
            adaptive_precision=self.adaptive_precision,
            default_precision=self.default_precision,
            allow_fp8=self.allow_fp8,
            refresh_every=self.refresh_every,
        )


MEASURES = ("entropy", "rank", "precision", "score_error")  # per head


class Block(nn.Module):
    """``x += attention(norm(x)); x += mlp(norm(x))``."""

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

    def forward(
        self,
        x_BSE: Tensor,
        state: KVState | None = None,
        position: Tensor | None = None,
        choice: Choice | None = None,
        kv_length: Tensor | None = None,
        sight: Sight | None = None,
    ) -> Tensor | BlockOutput:
        """(B, S, E) -> (B, S, E); with a ``sight``, what was measured goes with it."""
        y = self.attention_norm(x_BSE)
        cached = {"state": state, "position": position, "kv_length": kv_length}
        y, measured = self.attention(y, y, y, choice, **cached, sight=sight)
        x_BSE = x_BSE + y
        x_BSE = x_BSE + self.mlp(self.mlp_norm(x_BSE))
        return BlockOutput(x_BSE, None, measured) if measured else x_BSE


class AdaAttnModel(LanguageModel):
    """A language model that adapts in every call without a cache, unless it is frozen.

    Nor does it under ``torch.func``, whose functions write to nothing. A sequence in a cache keeps
    to its end what was chosen when it began, for its keys lie there as that choice made them; a
    saved cache holds the choice too.
    """

    unstaged = "its heads adapt to the whole batch, once a step, and all layers together"

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
        self._sight: Sight | None = None  # of the call that is under way

    def freeze(self, frozen: bool = True) -> None:
        """Keep the ranks and precisions as they are: calls are pure, and cost no analysis."""
        self.adapting = not frozen

    def common_state(self) -> Chosen:
        """Return the choice that the cached keys were made with."""
        return self.adaptation.chosen()

    def adapted(self) -> dict[str, Tensor]:
        """Return the state of the adaptation."""
        return dict(self.adaptation.named_buffers())

    def calls_to_settle(self) -> int:
        """Until as many analyses have counted as it takes to go down once."""
        rules = self.adaptation.rules
        if not (self.adapting and (rules.adaptive_rank or rules.adaptive_precision)):
            return 0
        analyses = PATIENCE + 1  # the first finds what the next have to confirm
        return max(0, analyses * rules.refresh_every - int(self.adaptation.step))

    def promise(self) -> Promise | None:
        """Return the error that ``score_error`` allows, as if layers erred independently."""
        worst_L = self.metrics()["score_error"].amax(1).double()
        return Promise(
            float(torch.expm1(2 * worst_L).square().sum().sqrt()),
            f"ranks and precisions that move no score by more than {float(worst_L.max()):.2g} nats",
        )

    def given(
        self, x_BSE: Tensor, cache: Cache | None, position: Tensor | None
    ) -> Sequence[tuple[Any, ...]]:
        """To every block what its heads compute with, and what they are to look at.

        All that layers have in common is computed here, once.
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
        """Record the metrics, and choose what the next call computes with."""
        sight, self._sight = self._sight, None
        if sight is None:
            return
        adaptation = self.adaptation
        metrics = adaptation.measures(list(measured.values()), sight)
        values = metrics | {"rank": adaptation.rank_LH, "precision": adaptation.bits_LH}
        for name, metric in self.metrics().items():
            metric.copy_(values[name])
        adaptation.update(metrics)


def check(config: AdaAttnConfig) -> None:
    """Raise ``ConfigurationError`` for sizes that do not go together."""
    if config.dim % config.n_heads:
        raise ConfigurationError(
            f"adaattn: dim = {config.dim} does not divide into n_heads = {config.n_heads} heads"
        )
    head_dim = config.dim // config.n_heads
    if head_dim % 2:
        raise ConfigurationError(
            f"adaattn: dim / n_heads = {head_dim} is odd, but rotary positions turn pairs; "
            "choose an even head width"
        )
    if config.qk_dimensions % 2 or config.qk_dimensions > head_dim:
        raise ConfigurationError(
            f"adaattn: qk_dimensions = {config.qk_dimensions} is not an even number up to the head "
            f"width {head_dim}"
        )
    check_rules("adaattn", config.rules)


def operators(config: AdaAttnConfig, workload: str) -> frozenset[str]:
    """Return the operators that a step of the workload calls.

    ``attention`` is also what the PyTorch form of ``adaptive_attention`` calls.
    """
    operators = {"rms_norm", "swiglu", "qk_norm_rope", "attention", *loss_operators(workload)}
    if workload not in ("decode", "generate"):
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
        help="Of each head's weights, over that of equal weights; 1 looks at all keys alike.",
        columns="head",
    ),
    Metric(
        name="rank",
        title="Rank",
        unit="columns",
        help="Columns that each head's scores are computed with; fewer cost less.",
        columns="head",
    ),
    Metric(
        name="precision",
        title="Precision",
        unit="bits",
        help="Bits of each head's queries and keys; 32 are those of the inputs.",
        columns="head",
    ),
    Metric(
        name="score_error",
        title="Largest error of a score",
        unit="nats",
        help="Bound on what rank and precision change of any score; well below 1 is harmless.",
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
