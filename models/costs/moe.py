"""Costs of a mixture-of-experts model's sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from models.configs.moe import MoEConfig
from models.costs.experts import cast_inputs, experts_at_work, experts_by_torch, rows_by_torch
from models.costs.model_costs import (
    Attends,
    BlockMemory,
    Costs,
    How,
    attention_parameters,
    attention_saved,
    outside_blocks,
)


def costs(config: MoEConfig) -> Costs:
    """Return the costs of the sizes: memory of all experts, work of those that a token uses.

    The work leaves out the projection of the noise, which only training has.
    """
    dim, layers, rows, width = config.input_dim, config.n_layers, config.rows, config.hidden_dim
    n_experts, k = config.num_experts, config.active_experts
    noisy = config.gating == "noisy_topk"
    kv_dim = config.n_kv_heads * config.head_dim
    attention = attention_parameters(dim, dim, kv_dim)
    expert, router = 3 * dim * width, n_experts * dim
    shared = config.num_shared_experts
    linears = attention + (n_experts + shared) * expert
    attention_numbers = attention_saved(dim, dim, kv_dim)
    # Log-sum-exp, both norms' inverse deviations; the router's probabilities; the noise.
    attention_fp32 = config.n_heads + 2 + n_experts + (3 * n_experts + dim if noisy else 0)

    sizes = {"dim": dim, "width": width, "n": n_experts, "k": k}

    def by_torch(step: How) -> BlockMemory:
        own_sizes = sizes | {"width": width // step.shards}
        memory, element = experts_by_torch(step, **own_sizes), step.element
        shared = config.num_shared_experts / step.shards
        attention_numbers = attention_saved(dim, dim // step.shards, kv_dim // step.shards)
        if step.compiled:
            fp32 = config.n_heads + 2 + n_experts + (2 * n_experts if noisy else 0)  # the noise
            extra_bytes = attention_numbers * element + 4 * fp32 + 3 * shared * width * element
            if element < 4 and not shared:  # gathered rows and the router's copy stand for it
                extra_bytes -= dim * element
            return replace(memory, kept_per_token=round(memory.kept_per_token + extra_bytes))
        backward: float = memory.backward_per_token
        if step.device_type != "cpu":
            backward += 2 * shared * width * element
        extra_bytes = (
            attention_numbers * element + 4 * attention_fp32 + 4 * shared * width * element
        )
        return replace(
            memory,
            kept_per_token=round(memory.kept_per_token + extra_bytes),
            backward_per_token=round(backward),
        )

    def inference_per_token(step: How) -> int:
        # The block's input, with attention, and its norm; then the routed or the shared experts.
        by_all = (dim + 3 * shared * width) * step.element if shared else 0
        experts = 3 * dim * step.stream + max(experts_at_work(step, **sizes), by_all)
        # Before them, beside input and norm: queries, keys, values, as they are and rotated.
        attention = 2 * (dim + 2 * kv_dim) * step.element + step.weights
        return max(experts, 2 * dim * step.stream + attention)

    def operator_outputs(step: How) -> tuple[float, ...]:
        # Queries, keys and values, the attention, its linear; the shared experts; by PyTorch, the
        # others. Fused kernels are not operators of torch.
        own = (2 * (dim + kv_dim) + 2 * shared * width) / step.shards
        numbers = own + dim + (dim if shared else 0)
        if not step.fused:
            rows = rows_by_torch(step, n=n_experts, k=k)
            numbers += rows * (2 * width / step.shards + dim)
        return (numbers * step.element + 4 * config.n_heads / step.shards,) * layers

    return Costs(
        parameters=layers * (linears + router * (2 if noisy else 1) + 2 * dim)
        + outside_blocks(dim, rows, config.tie_embeddings),
        n_layers=layers,
        dim=dim,
        rows=rows,
        tied=config.tie_embeddings,
        matmul_per_token=layers * (attention + router + (k + shared) * expert),
        linear_parameters=layers * linears,
        cast_by_operators=n_experts * expert,
        computed_together=n_experts * expert,
        largest_in_block=n_experts * 2 * dim * width,
        inference_per_token=inference_per_token,
        score_width=layers * dim,
        window=config.window,
        cached_per_token=layers * 2 * kv_dim,
        # Also gate and up of each choice; gate, up and their product of the shared experts.
        saved_per_token=attention_numbers + 2 * k * width + 3 * shared * width,
        saved_stream_per_token=2 * dim,
        operator_outputs=operator_outputs,
        # Also a choice's weight, its number (int64) and both directions of the order (int32).
        saved_fp32_per_token=attention_fp32 + 5 * k,
        by_torch=by_torch,
        beside=partial(cast_inputs, dim=dim, consumers=2 if shared else 1),
        decisive="moe_experts",
        attends=((((Attends(config.n_heads, config.n_kv_heads, config.head_dim),),),) * layers),
        saved_past_attention=dim + 2 * k * width + 3 * shared * width,
        backward_per_token=2 * k * (width + dim) + 2 * shared * width,
        table_bytes=4 * config.max_sequence * config.head_dim,
    )


def active_parameters(config: MoEConfig) -> int:
    """Count the parameters that a token uses: all but those of experts it does not choose."""
    idle = config.num_experts - config.active_experts
    expert = 3 * config.input_dim * config.hidden_dim
    return costs(config).parameters - config.n_layers * idle * expert
