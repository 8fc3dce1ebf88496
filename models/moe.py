"""Mixture of experts: a pre-norm transformer whose feed-forward networks are chosen by the token.

Every block has attention and a layer of SwiGLU experts; a router picks ``top_k`` experts per token.
More experts add parameters, but the work of a token depends only on those it chooses. No token is
dropped unless a capacity is set. No step waits for the host, so that any step can be captured in a
CUDA graph. ``models.layers.mixture`` has the mathematics. This module also has the forms for
vectors instead of tokens: ``MixtureOfExpertsSystem``, ``FullyOptimizedMoESystem`` and
``CUDAGraphInference``.
"""

from __future__ import annotations

from models.configs.moe import MoEConfig, check
from models.costs.moe import active_parameters, costs
from models.execution.cuda_graph import CUDAGraphInference
from models.family import Family
from models.language_model import LanguageModel, step_operators
from models.layers.mixture import MixtureOfExperts, make_blocks
from models.model import Metric
from models.moe_optimized import FullyOptimizedMoESystem
from models.moe_system import MixtureOfExpertsSystem

__all__ = [
    "FAMILY",
    "CUDAGraphInference",
    "FullyOptimizedMoESystem",
    "MixtureOfExperts",
    "MixtureOfExpertsSystem",
    "MoEConfig",
    "active_parameters",
]


def construct(config: MoEConfig) -> LanguageModel:
    """Return the model's structure, on the current default device."""
    return LanguageModel(
        rows=config.rows,
        dim=config.input_dim,
        blocks=make_blocks(config),
        max_sequence=config.max_sequence,
        norm_eps=config.norm_eps,
        tie_embeddings=config.tie_embeddings,
    )


def operators(config: MoEConfig, workload: str) -> frozenset[str]:
    """Return the operators that a step of the workload calls."""
    operators = {"rms_norm", "rope", "attention", "moe_gating", "moe_experts"}
    if config.num_shared_experts:
        operators.add("swiglu")
    gates = config.num_shared_experts > 0
    return frozenset(operators | step_operators(workload, fuses_gates=gates, fuses_heads=True))


PRESETS = {
    "tiny": MoEConfig(
        vocabulary=256,
        input_dim=64,
        hidden_dim=64,
        n_layers=3,
        num_experts=8,
        top_k=2,
        n_heads=4,
        n_kv_heads=2,
        max_sequence=512,
    ),
    "small": MoEConfig(
        input_dim=256, hidden_dim=512, n_layers=6, num_experts=8, top_k=2, n_heads=4, n_kv_heads=2
    ),
    "base": MoEConfig(
        input_dim=768,
        hidden_dim=768,
        n_layers=12,
        num_experts=16,
        top_k=2,
        n_heads=12,
        n_kv_heads=4,
    ),
    "document": MoEConfig(n_layers=4),
    # The shape of OLMoE-1B-7B (arXiv 2409.02060), of whose parameters a token meets a fifth.
    "large": MoEConfig(
        input_dim=2048,
        hidden_dim=1024,
        n_layers=16,
        num_experts=64,
        top_k=8,
        n_heads=16,
        n_kv_heads=16,
        max_sequence=4096,
        tie_embeddings=False,
    ),
}

SUGGESTIONS = {
    "tiny": {"cuda": (16, 256), "cpu": (2, 64)},
    "small": {"cuda": (8, 512), "cpu": (1, 64)},
    "base": {"cuda": (8, 1024), "cpu": (1, 32)},
    "document": {"cuda": (8, 1024), "cpu": (1, 32)},
    "large": {"cuda": (2, 1024), "cpu": (1, 16)},
}

METRICS = (
    Metric(
        name="expert_load",
        title="Expert load",
        unit="",
        help="Fraction of all choices that went to each expert; even use is 1 / number of experts.",
        columns="expert",
    ),
    Metric(
        name="load_balance",
        title="Load balance",
        unit="",
        help="The balancing loss before its weight: 1 is even use, the number of experts / k is "
        "the worst.",
    ),
    Metric(
        name="load_entropy",
        title="Load entropy",
        unit="",
        help="Entropy of the load relative to even use: 1 is even use, 0 is one expert for all.",
    ),
    Metric(
        name="dropped_share",
        title="Dropped choices",
        unit="",
        help="Fraction of the choices whose expert was full; 0 without a capacity.",
    ),
)

FAMILY = Family(
    name="moe",
    title="Mixture of experts",
    help=__doc__,
    config=MoEConfig,
    presets=PRESETS,
    suggestions=SUGGESTIONS,
    construct=construct,
    check=check,
    costs=costs,
    operators=operators,
    inference_only=("in_place", "reuse_buffers"),
    metrics=METRICS,
)
