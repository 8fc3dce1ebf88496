"""Costs of a Mamba-2 hybrid's sizes.

Shapes: E model width, H the mixer's heads, N its states, G its groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from kernels.ssd_scan import CHUNK, ScanMemory, scan_memory
from models.configs.mamba2 import Mamba2Config
from models.costs.model_costs import (
    Attends,
    Beside,
    BlockMemory,
    Costs,
    How,
    attention_parameters,
    outside_blocks,
)
from models.layers.ssm import SSMSizes


def costs(config: Mamba2Config) -> Costs:
    """Return the costs of the sizes."""
    dim, layers, rows, size = config.dim, config.n_layers, config.rows, config.mixer
    attending, heads = config.attending, config.n_heads
    kv_dim, state = _kv_dim(config), size.inner * size.d_state
    linears = dim * size.projected + size.inner * dim
    attention = attention_parameters(dim, dim, kv_dim) + dim  # and the gate
    small = (size.d_conv + 1) * size.convolved + 3 * size.n_heads + size.inner
    matmuls = layers * linears + attending * attention
    # Additional for a block that attends: rotated q, k, v, the attention's output, the branches'
    # difference; log-sum-exp and the gate, which are in FP32.
    saved_per_attention = (dim + 2 * kv_dim) + dim + dim + 2 * (heads + 1)
    attends = [config.attends(index) for index in range(layers)]
    return Costs(
        parameters=matmuls
        + attending
        + layers * (small + dim)
        + outside_blocks(dim, rows, config.tie_embeddings),
        n_layers=layers,
        dim=dim,
        rows=rows,
        tied=config.tie_embeddings,
        matmul_per_token=matmuls,
        scan_per_token=layers * (3 * state + size.d_conv * size.convolved),
        score_width=attending * dim,
        window=config.window,
        cached_per_token=attending * 2 * kv_dim,
        cached_per_sequence=layers * size.convolved * size.d_conv,
        cached_fp32_per_sequence=layers * state,
        # The norm's output, all outputs of in_proj and the convolution, the scan's output, the
        # norm's.
        saved_per_token=dim + size.projected + size.convolved + 2 * size.inner,
        saved_stream_per_token=dim,
        saved_fp32_per_token=1 + size.n_groups,  # the norms' inverse deviations
        by_torch=partial(_by_torch, config),
        decisive="ssd_scan",
        # The gradients of y, z and x, after y and the norm's output are freed.
        backward_per_token=size.inner,
        kept_beside=lambda step: tuple(
            (saved_per_attention * n_attentions * step.element,) for n_attentions in attends
        ),
        block_weights=tuple(
            (linears + n_attentions * attention) / matmuls for n_attentions in attends
        ),
        beside=partial(_scan_bytes, config),
        operator_outputs=partial(_operator_outputs, config),
        attends=tuple(
            ((Attends(heads, config.n_kv_heads, dim // heads),) * n_attentions,)
            for n_attentions in attends
        ),
        inference_per_token=partial(_inference_per_token, config),
        table_bytes=4 * config.max_sequence * (dim // heads),
        rotating=attending,
    )


def _kv_dim(config: Mamba2Config) -> int:
    return config.n_kv_heads * (config.dim // config.n_heads)


def _sizes(config: Mamba2Config, step: How) -> SSMSizes:
    """Return a mixer's sizes on a rank: with its part of the heads, or of their groups."""
    size = config.mixer
    groups = max(1, size.n_groups // step.shards)
    return replace(size, inner=size.inner // step.shards, n_groups=groups)


def _scanning(config: Mamba2Config, step: How) -> ScanMemory:
    size = _sizes(config, step)
    dtype = {2: torch.bfloat16, 4: torch.float32}[step.element]
    cut = (size.n_heads, size.head_dim, size.n_groups, size.d_state)
    return scan_memory(step.batch, step.sequence, *cut, dtype)


def _scan_bytes(config: Mamba2Config, step: How) -> Beside:
    if not step.fused:
        return Beside()
    scan = _scanning(config, step)
    if step.keys and not scan.saved:  # a rank's scan begins with the state of previous tokens
        return Beside(scan.final, scan.backward + scan.final)
    return Beside(scan.saved, scan.backward)


def _operator_outputs(config: Mamba2Config, step: How) -> tuple[float, ...]:
    """Return bytes per token, by block, of the outputs of products and attention."""
    size = _sizes(config, step)
    mixer = size.projected + config.dim
    if not step.fused:  # the scan's scores, states, and both terms of its outputs
        mixer += CHUNK * size.n_groups + size.inner * size.d_state // CHUNK + 2 * size.inner
    # Queries, keys and values; the attention, its linear.
    attention = 2 * (config.dim + _kv_dim(config)) // step.shards + config.dim
    return tuple(
        step.element * (mixer + config.attends(index) * attention)
        for index in range(config.n_layers)
    )


def _by_torch(config: Mamba2Config, step: How) -> BlockMemory:
    return _compiled(config, step) if step.compiled else _eager(config, step)


def _compiled(config: Mamba2Config, step: How) -> BlockMemory:
    size = _sizes(config, step)
    inner, pairs = size.inner, CHUNK * size.n_heads
    copied = step.element < 4  # copies of the results, for arithmetic in FP32
    # The norm's output, all outputs of in_proj and the convolution, B; in the scan its scores,
    # their decayed copy, x twice, the states' outputs; y and the gated norm's output.
    computed = config.dim + size.projected + size.convolved + size.n_groups * size.d_state
    computed += CHUNK * size.n_groups + pairs + (5 if copied else 4) * inner
    # The decays, in FP64; the norms' deviations, the convolution's sum, the gated norm's.
    fp32 = 2 * (pairs + size.n_heads) + 1 + size.n_groups + size.convolved + inner
    # The gated norm has products in FP32.
    return BlockMemory(
        kept_per_token=computed * step.element + fp32 * 4, backward_per_token=3 * 4 * inner
    )


def _eager(config: Mamba2Config, step: How) -> BlockMemory:
    size = _sizes(config, step)
    inner, pairs, states = size.inner, CHUNK * size.n_heads, size.inner * size.d_state // CHUNK
    copied = step.element < 4  # copies of the results, for arithmetic in FP32
    # The norm's output, the convolution's; in the scan its scores, their decayed copy, x, both
    # terms of its outputs; the gated norm's output. Its z is a part of in_proj's result, and the
    # states have a copy, if neither is a copy in FP32.
    computed = config.dim + size.convolved + CHUNK * size.n_groups + pairs + 4 * inner
    computed += states if copied else size.projected
    # The norms' deviations; the convolution's input and sum; the scan's decays, in FP64 too, with
    # the scores, states, steps; the gated norm's input, gate, product and quotient.
    fp32 = 1 + size.n_groups + 2 * size.convolved + 4 * pairs + states + 11 * size.n_heads
    fp32 += (5 if copied else 4) * inner
    return BlockMemory(
        kept_per_token=computed * step.element + fp32 * 4,
        # The gated norm has five products in FP32, after its quotient and output are freed.
        backward_per_token=(4 * 4 - step.element) * inner,
    )


def _inference_per_token(config: Mamba2Config, step: How) -> int:
    dim, size = config.dim, config.mixer
    # The block's input and its norm; all outputs of in_proj and the convolution.
    before = 2 * dim * step.stream + (size.projected + size.convolved) * step.element
    # With attention: the mixer's result; queries, keys, values, before and after rotation.
    attention = (
        2 * dim * step.stream + (3 * dim + 4 * _kv_dim(config)) * step.element + step.weights
    )
    if not config.attending:
        attention = 0
    if step.fused:
        # During the scan, the scan's output; then also the norm's, and the result.
        scan, inner = _scanning(config, step), size.inner * step.element
        of_state = size.convolved * size.d_conv * step.element // step.sequence
        scanning = max(
            inner + scan.forward // (step.batch * step.sequence),
            2 * inner + dim * step.element + scan.final // (step.batch * step.sequence),
        )
        return max(before + scanning + of_state, attention)
    # The last chunk's decays, in FP64, and weights; while these are computed more of the kind, then
    # the scan's outputs, by chunk and together, D x, and their sum.
    of_chunk = min(CHUNK, step.sequence) ** 2 * size.n_heads // step.sequence
    before += 4 * size.inner + 10 * of_chunk + max(3 * 4 * size.inner, 10 * of_chunk)
    return max(before, attention)
