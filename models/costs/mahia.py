"""Costs of a MAHIA-X model's sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from models.configs.mahia import MahiaConfig
from models.costs.experts import cast_inputs, experts_at_work, experts_by_torch, rows_by_torch
from models.costs.model_costs import (
    Attends,
    BlockMemory,
    Costs,
    How,
    attention_parameters,
    attention_saved,
    dense_block,
)
from models.layers.basic import mlp_width


def costs(config: MahiaConfig) -> Costs:
    """Return the costs; the Fourier filter, S log S without a product, is not counted as FLOPs."""
    text, table, fused = config.embed_dim, config.tab_hidden_dim, config.fused_dim
    heads, slots, layers = config.n_heads, config.memory_size, config.n_layers
    hidden, fabric = mlp_width(text, config.mlp_ratio), mlp_width(fused, config.mlp_ratio)
    served, copies = (config.expert_top_k, config.n_experts) if config.use_moe else (1, 1)
    router = config.n_experts * text if config.use_moe else 0
    gate = heads * text if config.use_fourier else 0
    attention, mlp = attention_parameters(text, text, text) + gate, 3 * text * hidden
    towers = config.tab_dim * table + table * table + (text + table) * fused
    layer = fused * 3 * fabric
    outside_layers = towers + 3 * fused * fused + fused * config.output_dim
    linears = layers * (attention + router + copies * mlp) + outside_layers
    linears += config.max_layers * (layer + fused)
    gains = layers * 2 * text + text + table + (2 + config.max_layers) * fused
    biases = 2 * table + fused + config.output_dim + (layers * heads if gate else 0)
    # Queries, keys and values before and after rotation, the attention's output; filtered, mixed.
    attending = 6 * text + (2 * text + heads if gate else 0)
    # Also the filtered values, their mixture, the gates.
    attention_numbers = attention_saved(text, text, text) + (2 * text + heads if gate else 0)
    sizes = {"dim": text, "width": hidden, "n": copies, "k": served}

    def by_torch(step: How) -> BlockMemory:
        memory = experts_by_torch(step, **sizes | {"width": hidden // step.shards})
        extra_bytes = attention_numbers * step.element + 4 * (heads + 2 + copies)
        return replace(memory, kept_per_token=memory.kept_per_token + extra_bytes)

    def inference_per_token(step: How) -> int:
        block = dense_block(
            step,
            dim=text,
            projected=4 * text,
            rotating=3 * text,
            attending=attending,
            hidden=0 if config.use_moe else hidden,
        )
        if config.use_moe:
            block = max(block, 3 * text * step.stream + experts_at_work(step, **sizes))
        return block + text * step.element  # the attention's result is freed when the block ends

    def operator_outputs(step: How) -> tuple[float, ...]:
        # Queries, keys and values, the attention, its linear; filtered values and the gates; gate,
        # up, and the last linear. Fused experts are not operators of torch.
        numbers = 5 * text + (text + heads if gate else 0)
        rows: float = 1
        if config.use_moe:
            rows = 0 if step.fused else rows_by_torch(step, n=copies, k=served)
        numbers += round(rows * (2 * hidden / step.shards + text))
        return (numbers * step.element + 4 * heads,) * layers

    return Costs(
        parameters=linears + gains + biases + (config.vocab_size * text) + slots * (fused + slots),
        n_layers=layers,
        dim=text,
        rows=0,
        matmul_per_token=layers * (attention + router + served * mlp),
        score_width=layers * text,
        cached_per_token=0,
        # Also gate, up, their product. The experts save their inputs once.
        saved_per_token=attention_numbers + (2 * served * hidden if config.use_moe else 3 * hidden),
        saved_stream_per_token=2 * text,
        saved_fp32_per_token=heads + 2,
        unfused_per_token=hidden * served,
        table_bytes=4 * config.text_seq_len * (text // heads),
        causal=config.causal,
        matmul_per_sequence=round(
            outside_layers
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
        linears_after=outside_layers + config.max_layers * (layer + fused),
        backward_per_token=2 * hidden * served,  # the gradients of gate and up
        inference_per_token=inference_per_token,
        attends=((((Attends(heads, heads, text // heads),),),) * layers),
        saved_past_attention=text + (2 * served * hidden if config.use_moe else 3 * hidden),
        by_torch=by_torch if config.use_moe else None,
        operator_outputs=operator_outputs,
        beside=partial(cast_inputs, dim=text, consumers=1) if config.use_moe else None,
        decisive="moe_experts" if config.use_moe else "",
        cast_by_operators=copies * mlp if config.use_moe else 0,
        computed_together=copies * mlp if config.use_moe else 0,
        largest_in_block=max(copies * 2 * text * hidden, config.vocab_size * text),
    )
