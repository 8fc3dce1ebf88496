"""Costs of the sizes of an AdaAttn model.

With all columns: fewer save at most half of what scores cost. Of the analysis no FLOPs are counted,
``models.layers.adaptive.measurements.SAMPLES`` queries a sequence and layer against all keys.

PyTorch's attention holds the whole matrix of weights on a CPU, as long as that is not too large:
torch's own FP32 kernel there would lose more than the definition does.
"""

from __future__ import annotations

from kernels.attention.memory import prefers_full_matrix
from models.configs.adaattn import AdaAttnConfig
from models.costs.model_costs import Attends, Costs, How, dense_block, outside_blocks
from models.layers.adaptive.measurements import SAMPLES, TOKENS
from models.layers.basic import mlp_width


def costs(config: AdaAttnConfig) -> Costs:
    """Return the costs of the sizes."""
    dim, layers, rows, heads = config.dim, config.n_layers, config.rows, config.n_heads
    head_dim, hidden = dim // heads, mlp_width(dim, config.mlp_ratio)
    linears = 4 * dim * dim + 3 * dim * hidden
    turned = 2 * dim * head_dim if config.adaptive_rank else 0  # into the basis
    sampled = 2 * TOKENS  # queries and keys that a basis comes from
    # As measured and stacked; with the ridge, projected, and what that loses; bases, also in FP64.
    refreshing = sampled + 3 * (sampled + head_dim) + 4 * head_dim if config.adaptive_rank else 0

    def attention(how: How) -> str:
        if how.fused:  # one kernel, whatever backend is asked for
            return ""
        if how.device_type == "cpu":
            is_manual = prefers_full_matrix(
                how.batch, heads, how.sequence, how.sequence, how.device_type
            )
            return "manual" if is_manual else "chunked"
        return how.attention

    def inference_per_token(how: How) -> int:
        # Queries, keys and values as they are, the former two as they are turned and in the basis;
        # the attention's output.
        attending = (3 + 2 + 2 + 1) * dim
        block = dense_block(
            how,
            dim=dim,
            projected=3 * dim,
            rotating=5 * dim,  # both normed; of one, its halves and what they are made of
            attending=attending,
            hidden=hidden,
        )
        if how.workload != "forward":
            return block
        # Analysed are queries and keys as they are turned: scores, cut, their softmax and entropy.
        seen = 4 * 4 * heads * min(SAMPLES, how.sequence)
        return max(block, 2 * dim * how.stream + 5 * dim * how.element + seen)

    return Costs(
        parameters=layers * (linears + 2 * dim + 2 * head_dim)
        + outside_blocks(dim, rows, config.tie_embeddings),
        n_layers=layers,
        dim=dim,
        rows=rows,
        matmul_per_token=layers * linears,
        scan_per_token=layers * turned,
        score_width=layers * dim,
        cached_per_token=layers * 2 * dim,
        # Of each head its rank, bits and factor, and its basis, in 32 bits.
        cached_bytes=4 * layers * heads * (3 + head_dim**2),
        # Both norms' outputs; q, k, v as they are and q, k in the basis; the attention's output;
        # gate, up, their product.
        saved_per_token=2 * dim + 5 * dim + dim + 3 * hidden,
        saved_stream_per_token=2 * dim,
        # The log-sum-exp and two inverse deviations of each head, and both norms'.
        saved_fp32_per_token=3 * heads + 2,
        unfused_per_token=hidden,  # silu(gate)
        unfused_fp32_per_token=4 * dim,  # the norms' steps of q and of k
        backward_per_token=2 * hidden,  # the gradients of gate and up
        table_bytes=4 * config.max_sequence * head_dim,
        attends=((((Attends(heads, heads, head_dim),),),) * layers),
        attention=attention,
        saved_past_attention=dim + 3 * hidden,
        inference_per_token=inference_per_token,
        # Two bases of each head and the one that a call computes with, and of these the rank, bits
        # and factor; for how long the former two could have been lower, and the number of calls.
        state_bytes=4 * layers * heads * (3 * head_dim**2 + 8) + 8,
        adapting_bytes=4 * layers * heads * head_dim * (sampled + refreshing),
    )
