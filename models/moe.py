"""Mixture of experts: a pre-norm transformer whose feed-forward networks are chosen by the token.

Every block has shared attention and a layer of SwiGLU experts, of which a router picks ``top_k``
per token: parameters grow with the experts, the work of a token only with those it chooses. No
token is dropped unless a capacity asks for it, and nothing waits for the host, so that any step can
be captured in a CUDA graph. ``models.layers.mixture`` has the mathematics. Here, too, are the forms
for vectors instead of tokens: ``MixtureOfExpertsSystem``, ``FullyOptimizedMoESystem`` and
``CUDAGraphInference``.
"""

from __future__ import annotations

from dataclasses import replace

from models.costs.experts import experts_at_work, experts_by_torch
from models.costs.model_costs import Attends, BlockMemory, Costs, How
from models.execution.cuda_graph import CUDAGraphInference
from models.family import Family
from models.language_model import LanguageModel, loss_operators
from models.layers.mixture import MixtureOfExperts, make_blocks
from models.model import Metric
from models.moe_config import MoEConfig, check
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


def costs(config: MoEConfig) -> Costs:
    """Return the costs of the sizes: memory of all experts, work of those a token is sent to.

    The projection of the noise, which only training has, is left out of the work.
    """
    dim, layers, rows, width = config.input_dim, config.n_layers, config.rows, config.hidden_dim
    n_experts, k = config.num_experts, config.active_experts
    noisy = config.gating == "noisy_topk"
    kv_dim = config.n_kv_heads * config.head_dim
    attention = dim * (dim + 2 * kv_dim) + dim * dim
    expert, router = 3 * dim * width, n_experts * dim
    shared = config.num_shared_experts
    tables = 1 if config.tie_embeddings else 2
    linears = attention + (n_experts + shared) * expert
    # Both norms' outputs, rotated q, k, v, the attention's output.
    around = 2 * dim + (dim + 2 * kv_dim) + dim
    # Log-sum-exp, both norms' inverse deviations; the router's probabilities; the noise.
    around_fp32 = config.n_heads + 2 + n_experts + (3 * n_experts + dim if noisy else 0)

    sizes = {"dim": dim, "width": width, "n": n_experts, "k": k}

    def by_torch(how: How) -> BlockMemory:
        memory, element = experts_by_torch(how, **sizes), how.element
        if how.compiled:
            fp32 = config.n_heads + 2 + n_experts + (2 * n_experts if noisy else 0)  # the noise
            more = around * element + 4 * fp32 + 3 * shared * width * element
            if element < 4 and not shared:  # gathered rows and the router's copy stand for it
                more -= dim * element
            return replace(memory, kept_per_token=memory.kept_per_token + more)
        backward = memory.backward_per_token
        if how.device_type != "cpu":
            backward += 2 * shared * width * element
        more = around * element + 4 * around_fp32 + 4 * shared * width * element
        return replace(
            memory, kept_per_token=memory.kept_per_token + more, backward_per_token=backward
        )

    def inference_per_token(how: How) -> int:
        # The block's input, with attention, and its norm; then the routed or the shared experts.
        by_all = (dim + 3 * shared * width) * how.element if shared else 0
        experts = 3 * dim * how.stream + max(experts_at_work(how, **sizes), by_all)
        # Before them, beside input and norm: queries, keys, values, as they are and rotated.
        attention = 2 * (dim + 2 * kv_dim) * how.element + how.weights
        return max(experts, 2 * dim * how.stream + attention)

    return Costs(
        parameters=layers * (linears + router * (2 if noisy else 1) + 2 * dim)
        + dim
        + tables * rows * dim,
        n_layers=layers,
        dim=dim,
        rows=rows,
        matmul_per_token=layers * (attention + router + (k + shared) * expert),
        linear_parameters=layers * linears,
        cast_by_operators=n_experts * expert,
        inference_per_token=inference_per_token,
        score_width=layers * dim,
        window=config.window,
        cached_per_token=layers * 2 * kv_dim,
        # Also gate and up of each choice; gate, up and their product of the shared experts.
        saved_per_token=around + 2 * k * width + 3 * shared * width,
        saved_stream_per_token=2 * dim,
        # Also a choice's weight, its number (int64) and both directions of the order (int32).
        saved_fp32_per_token=around_fp32 + 5 * k,
        by_torch=by_torch,
        decisive="moe_experts",
        attends=((((Attends(config.n_heads, config.n_kv_heads, config.head_dim),),),) * layers),
        saved_past_attention=dim + 2 * k * width + 3 * shared * width,
        backward_per_token=2 * k * (width + dim) + 2 * shared * width,
        table_bytes=4 * config.max_sequence * config.head_dim,
    )


def operators(config: MoEConfig, workload: str) -> frozenset[str]:
    """Return the operators that a step of the workload calls."""
    operators = {"rms_norm", "rope", "attention", "moe_gating", "moe_experts"}
    if config.num_shared_experts:
        operators.add("swiglu")
    return frozenset(operators | loss_operators(workload))


def active_parameters(config: MoEConfig) -> int:
    """Parameters that one token meets: all but the experts it does not choose."""
    idle = config.num_experts - config.active_experts
    expert = 3 * config.input_dim * config.hidden_dim
    return costs(config).parameters - config.n_layers * idle * expert


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
        help="Share of all choices that fell on each expert; even is one over their number.",
        columns="expert",
    ),
    Metric(
        name="load_balance",
        title="Load balance",
        unit="",
        help="The balancing loss before its weight: 1 is even use, the number of experts over k is "
        "the worst.",
    ),
    Metric(
        name="load_entropy",
        title="Load entropy",
        unit="",
        help="Entropy of the load over that of even use: 1 is even, 0 is one expert for all.",
    ),
    Metric(
        name="dropped_share",
        title="Dropped choices",
        unit="",
        help="Share of the choices that found their expert full; 0 without a capacity.",
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
