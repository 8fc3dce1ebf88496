"""Sizes of MAHIA-X: their allowed values, and their costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from models import config_fields
from models.costs.experts import experts_at_work, experts_by_torch
from models.costs.model_costs import Attends, BlockMemory, Costs, How, dense_block
from models.errors import ConfigurationError
from models.family import setting
from models.layers.basic import mlp_width


@dataclass(frozen=True, kw_only=True)
class MahiaConfig:
    """Sizes of one MAHIA-X model."""

    vocab_size: int = setting(
        10_000, "Vocabulary", "Number of different tokens.", minimum=2, maximum=1_048_576
    )
    text_seq_len: int = setting(
        128, "Longest text", "Tokens of a text; shorter ones fit.", minimum=1, maximum=1_048_576
    )
    tab_dim: int = setting(
        50, "Tabular features", "Numbers that come with each text.", minimum=1, maximum=65536
    )
    output_dim: int = setting(
        2, "Outputs", "Classes, or numbers to predict.", minimum=1, maximum=65536
    )
    embed_dim: int = setting(
        128, "Text width", "Width of the text tower.", minimum=2, maximum=65536
    )
    tab_hidden_dim: int = setting(
        128, "Tabular width", "Width of the tabular tower.", minimum=1, maximum=65536
    )
    fused_dim: int = setting(
        128, "Fused width", "Width of memory and fabric.", minimum=1, maximum=65536
    )
    use_moe: bool = setting(
        False, "Experts", "The text blocks' feed-forward layers are mixtures of experts."
    )
    task: str = setting(
        "classification",
        "Task",
        "Classes by cross-entropy, or numbers by squared error.",
        choices=("classification", "regression"),
    )
    n_layers: int = setting(4, "Text layers", "Blocks of the text tower.", minimum=1, maximum=1024)
    n_heads: int = setting(4, "Heads", "Must divide the text width.", minimum=1, maximum=1024)
    mlp_ratio: float = setting(
        2.67,
        "MLP ratio",
        "Feed-forward width over model width, in text blocks, experts and fabric.",
        minimum=0.25,
        maximum=16,
    )
    use_fourier: bool = setting(
        True, "Fourier mixing", "Each head mixes attention with a Fourier filter of its values."
    )
    causal: bool = setting(
        False, "Causal text", "A token sees those before it only: the language-model form."
    )
    memory_size: int = setting(
        64, "Memory slots", "Above 128 no kernel holds the graph.", minimum=1, maximum=65536
    )
    memory_top_k: int = setting(
        0, "Neighbours of a slot", "Edges kept of each slot; 0 keeps all.", minimum=0, maximum=65536
    )
    diffusion_steps: int = setting(
        3,
        "Diffusion steps",
        "Steps over the memory's graph.",
        minimum=1,
        maximum=64,
        weights=False,
    )
    diffusion_alpha: float = setting(
        0.85, "Diffusion", "Share that comes from a slot's neighbours.", minimum=0, maximum=1
    )
    max_layers: int = setting(
        8, "Fabric layers", "The greatest depth of a sample.", minimum=1, maximum=1024
    )
    capacity: float = setting(
        0.5,
        "Fabric capacity",
        "Share of the batch that each fabric layer serves.",
        minimum=0.001,
        maximum=1,
        weights=False,
    )
    n_experts: int = setting(8, "Number of experts", "Of each block.", minimum=1, maximum=512)
    expert_top_k: int = setting(
        2, "Experts a token", "How many experts serve a token.", minimum=1, maximum=512
    )
    rope_theta: float = config_fields.rope_theta()
    norm_eps: float = config_fields.norm_eps()


def check(config: MahiaConfig) -> None:
    """Raise ``ConfigurationError`` for sizes that do not fit together."""
    if config.embed_dim % config.n_heads:
        raise ConfigurationError(
            f"mahia: embed_dim = {config.embed_dim} does not divide into n_heads = "
            f"{config.n_heads} heads"
        )
    if (head_dim := config.embed_dim // config.n_heads) % 2:
        raise ConfigurationError(
            f"mahia: embed_dim / n_heads = {head_dim} is odd, but rotary positions turn pairs; "
            "choose an even head width"
        )
    if config.memory_top_k > config.memory_size:
        raise ConfigurationError(
            f"mahia: memory_top_k = {config.memory_top_k} exceeds memory_size = "
            f"{config.memory_size}; 0 keeps every edge"
        )
    if config.expert_top_k > config.n_experts:
        raise ConfigurationError(
            f"mahia: expert_top_k = {config.expert_top_k} exceeds n_experts = {config.n_experts}"
        )
    if config.task == "classification" and config.output_dim < 2:
        raise ConfigurationError(
            f"mahia: classification needs an output_dim of at least 2, not {config.output_dim}"
        )


def costs(config: MahiaConfig) -> Costs:
    """Return the costs; the Fourier filter, S log S without a product, is not counted as FLOPs."""
    text, table, fused = config.embed_dim, config.tab_hidden_dim, config.fused_dim
    heads, slots, layers = config.n_heads, config.memory_size, config.n_layers
    hidden, fabric = mlp_width(text, config.mlp_ratio), mlp_width(fused, config.mlp_ratio)
    served, copies = (config.expert_top_k, config.n_experts) if config.use_moe else (1, 1)
    router = config.n_experts * text if config.use_moe else 0
    gate = heads * text if config.use_fourier else 0
    attention, mlp = 4 * text * text + gate, 3 * text * hidden
    towers = config.tab_dim * table + table * table + (text + table) * fused
    layer = fused * 3 * fabric
    beside = towers + 3 * fused * fused + fused * config.output_dim
    linears = layers * (attention + router + copies * mlp) + beside
    linears += config.max_layers * (layer + fused)
    gains = layers * 2 * text + text + table + (2 + config.max_layers) * fused
    biases = 2 * table + fused + config.output_dim + (layers * heads if gate else 0)
    # Queries, keys and values before and after rotation, the attention's output; filtered, mixed.
    attending = 6 * text + (2 * text + heads if gate else 0)
    # Both norms' outputs, rotated q, k, v, the attention's output, the filtered values, their
    # mixture, the gates.
    around = 2 * text + 4 * text + (2 * text + heads if gate else 0)
    sizes = {"dim": text, "width": hidden, "n": copies, "k": served}

    def by_torch(how: How) -> BlockMemory:
        memory = experts_by_torch(how, **sizes)
        more = around * how.element + 4 * (heads + 2 + copies)
        return replace(memory, kept_per_token=memory.kept_per_token + more)

    def inference_per_token(how: How) -> int:
        block = dense_block(
            how,
            dim=text,
            projected=4 * text,
            rotating=3 * text,
            attending=attending,
            hidden=0 if config.use_moe else hidden,
        )
        if config.use_moe:
            block = max(block, 3 * text * how.stream + experts_at_work(how, **sizes))
        return block + text * how.element  # the attention's result is freed when the block ends

    return Costs(
        parameters=linears + gains + biases + (config.vocab_size * text) + slots * (fused + slots),
        n_layers=layers,
        dim=text,
        rows=0,
        matmul_per_token=layers * (attention + router + served * mlp),
        score_width=layers * text,
        cached_per_token=0,
        # Also gate, up, their product. The experts save their inputs once.
        saved_per_token=around + (2 * served * hidden if config.use_moe else 3 * hidden),
        saved_stream_per_token=2 * text,
        saved_fp32_per_token=heads + 2,
        unfused_per_token=hidden * served,
        table_bytes=4 * config.text_seq_len * (text // heads),
        causal=config.causal,
        matmul_per_sequence=round(
            beside
            + 3 * fused * slots
            + config.diffusion_steps * slots * slots
            + config.max_layers * (fused + config.capacity * layer)
        ),
        saved_per_sequence=round(
            2 * text
            + 4 * table
            + 8 * fused
            + (3 + config.diffusion_steps) * slots
            + config.max_layers * (2 * fused + config.capacity * (3 * fused + 3 * fabric))
        ),
        linear_parameters=linears,
        linears_after=beside + config.max_layers * (layer + fused),
        backward_per_token=2 * hidden * served,  # the gradients of gate and up
        inference_per_token=inference_per_token,
        attends=((((Attends(heads, heads, text // heads),),),) * layers),
        saved_past_attention=text + (2 * served * hidden if config.use_moe else 3 * hidden),
        by_torch=by_torch if config.use_moe else None,
        decisive="moe_experts" if config.use_moe else "",
        cast_by_operators=copies * mlp if config.use_moe else 0,
    )
