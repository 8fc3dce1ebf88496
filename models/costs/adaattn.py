"""Costs of the sizes of an AdaAttn model.

FLOPs are those with all columns; fewer columns save at most half of the scores. The analysis is not
counted: ``measurements.SAMPLES`` queries per sequence and layer against all keys.

On a CPU, PyTorch's attention holds the full matrix of weights as long as it is not too large,
because torch's own FP32 kernel there loses more than the definition does.
"""

from __future__ import annotations

from kernels.attention.memory import prefers_full_matrix
from models.configs.adaattn import AdaAttnConfig
from models.costs.model_costs import Attends, Beside, Costs, How, dense_block, outside_blocks
from models.layers.adaptive.measurements import SAMPLES, TOKENS
from models.layers.basic import mlp_width


def costs(config: AdaAttnConfig) -> Costs:
    """Return the costs of the sizes."""
    dim, layers, rows, heads = config.dim, config.n_layers, config.rows, config.n_heads
    head_dim, hidden = dim // heads, mlp_width(dim, config.mlp_ratio)
    linears = 4 * dim * dim + 3 * dim * hidden
    turned = 2 * dim * head_dim if config.adaptive_rank else 0  # into the basis
    sampled = 2 * TOKENS  # queries and keys that a basis comes from
    # Rows as measured and stacked; rows with the ridge, projected rows, and their difference;
    # bases, also in FP64.
    refreshing = sampled + 3 * (sampled + head_dim) + 4 * head_dim if config.adaptive_rank else 0

    def attention(step: How) -> str:
        if step.fused:  # one kernel, whatever backend is requested
            return ""
        if step.device_type == "cpu":
            is_manual = prefers_full_matrix(
                step.batch, heads, step.sequence, step.sequence, step.device_type
            )
            return "manual" if is_manual else "chunked"
        return step.attention

    def inference_per_token(step: How) -> int:
        # Queries, keys and values as projected; queries and keys also rotated, and in the basis;
        # the attention's output.
        attending = (3 + 2 + 2 + 1) * dim
        block = dense_block(
            step,
            dim=dim,
            projected=3 * dim,
            rotating=5 * dim,  # both normed; the halves of one of them and their products
            attending=attending,
            hidden=hidden,
        )
        if step.workload != "forward":
            return block
        # The analysis of rotated queries and keys: scores, masked scores, softmax and entropy.
        analysis = 4 * 4 * heads * min(SAMPLES, step.sequence)
        return max(block, 2 * dim * step.stream + 5 * dim * step.element + analysis)

    def beside(step: How) -> Beside:
        # Copies of q and k, unless they are in FP32 already.
        copied = step.by_operators and step.element < 4
        return Beside(step.batch * step.sequence * 4 * 2 * dim * copied)

    def operator_outputs(step: How) -> tuple[float, ...]:
        # Queries, keys and values, and queries and keys in the basis; PyTorch's attention; the
        # attention's linear, gate, up, and the last linear.
        attention = 3 * dim + (2 * dim if config.adaptive_rank else 0)
        attention += 0 if step.fused else dim
        return (step.element * (attention + 2 * dim + 2 * hidden),) * layers

    return Costs(
        parameters=layers * (linears + 2 * dim + 2 * head_dim)
        + outside_blocks(dim, rows, config.tie_embeddings),
        n_layers=layers,
        dim=dim,
        rows=rows,
        tied=config.tie_embeddings,
        matmul_per_token=layers * linears,
        scan_per_token=layers * turned,
        score_width=layers * dim,
        cached_per_token=layers * 2 * dim,
        # The rank, bits, factor and basis of each head, in 32 bits.
        cached_bytes=4 * layers * heads * (3 + head_dim**2),
        # Both norms' outputs; q, k, v as projected and q, k in the basis; the attention's output;
        # gate, up, their product.
        saved_per_token=2 * dim + 5 * dim + dim + 3 * hidden,
        saved_stream_per_token=2 * dim,
        # The log-sum-exp and two inverse deviations of each head, and both norms'.
        saved_fp32_per_token=3 * heads + 2,
        unfused_per_token=hidden,  # silu(gate)
        unfused_fp32_per_token=2 * dim,  # the norms' steps of q and of k
        beside=beside,
        backward_per_token=2 * hidden,  # the gradients of gate and up
        operator_outputs=operator_outputs,
        table_bytes=4 * config.max_sequence * head_dim,
        attends=((((Attends(heads, heads, head_dim),),),) * layers),
        attention=attention,
        saved_past_attention=dim + 3 * hidden,
        inference_per_token=inference_per_token,
        # For each head: two bases and the one that a call computes with; the current rank, bits
        # and factor and those of the call; two counts of calm analyses. The number of calls.
        state_bytes=4 * layers * heads * (3 * head_dim**2 + 8) + 8,
        adapting_bytes=4 * layers * heads * head_dim * (sampled + refreshing),
    )
