"""What the sizes of a Mamba-2 hybrid cost.

Shapes: E model width, H the mixer's heads, N its states, G its groups.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from kernels.ssd_scan import CHUNK, ScanMemory, scan_memory
from models._costs import Attends, Beside, Costs, Held, How

if TYPE_CHECKING:
    from models.mamba2 import Mamba2Config


def costs(config: Mamba2Config) -> Costs:
    """What the sizes cost."""
    dim, layers, rows, size = config.dim, config.n_layers, config.rows, config.mixer
    attending, heads = config.attending, config.n_heads
    kv_dim, state = _kv_dim(config), size.inner * size.d_state
    linears = dim * size.projected + size.inner * dim
    attention = dim * (dim + 2 * kv_dim) + dim * dim + dim  # and the gate
    small = (size.d_conv + 1) * size.convolved + 3 * size.n_heads + size.inner
    matmuls = layers * linears + attending * attention
    embeddings = (1 if config.tie_embeddings else 2) * rows * dim
    # A block that attends, too: rotated q, k, v, the attention's output, the branches' difference;
    # log-sum-exp and the gate, which are in FP32.
    more = (dim + 2 * kv_dim) + dim + dim + 2 * (heads + 1)
    attends = [config.attends(index) for index in range(layers)]
    return Costs(
        parameters=matmuls + attending + layers * (small + dim) + dim + embeddings,
        n_layers=layers,
        dim=dim,
        rows=rows,
        matmul_per_token=matmuls,
        scan_per_token=layers * (3 * state + size.d_conv * size.convolved),
        score_width=attending * dim,
        window=config.window,
        cached_per_token=attending * 2 * kv_dim,
        cached_per_sequence=layers * size.convolved * size.d_conv,
        cached_fp32_per_sequence=layers * state,
        # The norm's output, all that in_proj and the convolution make, the scan's output, the
        # norm's.
        saved_per_token=dim + size.projected + size.convolved + 2 * size.inner,
        saved_stream_per_token=dim,
        saved_fp32_per_token=1 + size.n_groups,  # the norms' inverse deviations
        by_torch=partial(_by_torch, config),
        decisive="ssd_scan",
        # The gradients of y, z and x, while y and the norm's output have gone.
        backward_per_token=size.inner,
        kept_beside=lambda how: tuple((more * each * how.element,) for each in attends),
        block_weights=tuple((linears + each * attention) / matmuls for each in attends),
        beside=partial(_beside, config),
        attends=tuple(
            ((Attends(heads, config.n_kv_heads, dim // heads),) * each,) for each in attends
        ),
        inference_per_token=partial(_inference_per_token, config),
        table_bytes=4 * config.max_sequence * (dim // heads),
        rotating=attending,
    )


def _kv_dim(config: Mamba2Config) -> int:
    return config.n_kv_heads * (config.dim // config.n_heads)


def _scanning(config: Mamba2Config, how: How) -> ScanMemory:
    size = config.mixer
    dtype = {2: torch.bfloat16, 4: torch.float32}[how.element]
    cut = (size.n_heads, size.head_dim, size.n_groups, size.d_state)
    return scan_memory(how.batch, how.sequence, *cut, dtype)


def _beside(config: Mamba2Config, how: How) -> Beside:
    if not how.fused:
        return Beside()
    scan = _scanning(config, how)
    return Beside(scan.saved, scan.backward)


def _by_torch(config: Mamba2Config, how: How) -> Held:
    return _compiled(config, how) if how.compiled else _eager(config, how)


def _compiled(config: Mamba2Config, how: How) -> Held:
    size = config.mixer
    inner, pairs = size.inner, CHUNK * size.n_heads
    copied = how.element < 4  # what is computed, for arithmetic in FP32
    # The norm's output, all that in_proj and the convolution make, B; of the scan its scores, those
    # decayed, x twice, the states' outputs; y and the gated norm's output.
    computed = config.dim + size.projected + size.convolved + size.n_groups * size.d_state
    computed += CHUNK * size.n_groups + pairs + (5 if copied else 4) * inner
    # The decays, in FP64; the norms' deviations, the convolution's sum, the gated norm's.
    fp32 = 2 * (pairs + size.n_heads) + 1 + size.n_groups + size.convolved + inner
    # The gated norm's has products in FP32.
    return Held(kept_per_token=computed * how.element + fp32 * 4, backward_per_token=3 * 4 * inner)


def _eager(config: Mamba2Config, how: How) -> Held:
    size = config.mixer
    inner, pairs, states = size.inner, CHUNK * size.n_heads, size.inner * size.d_state // CHUNK
    copied = how.element < 4  # what is computed, for arithmetic in FP32
    # The norm's output, the convolution's; of the scan its scores, those decayed, x, both terms of
    # its outputs; the gated norm's output. Its z is a part of all that in_proj makes, and the
    # states have a copy, where either is no copy in FP32.
    computed = config.dim + size.convolved + CHUNK * size.n_groups + pairs + 4 * inner
    computed += states if copied else size.projected
    # The norms' deviations; the convolution's input and sum; the scan's decays, in FP64 too, with
    # the scores, states, steps; the gated norm's input, gate, product and quotient.
    fp32 = 1 + size.n_groups + 2 * size.convolved + 4 * pairs + states + 11 * size.n_heads
    fp32 += (5 if copied else 4) * inner
    return Held(
        kept_per_token=computed * how.element + fp32 * 4,
        # The gated norm's has five products in FP32, while its quotient and output have gone.
        backward_per_token=(4 * 4 - how.element) * inner,
    )


def _inference_per_token(config: Mamba2Config, how: How) -> int:
    dim, size = config.dim, config.mixer
    # The block's input and its norm; all that in_proj and the convolution make.
    before = 2 * dim * how.stream + (size.projected + size.convolved) * how.element
    # Where it attends: the mixer's result; queries, keys, values, as they are and rotated.
    attention = 2 * dim * how.stream + (3 * dim + 4 * _kv_dim(config)) * how.element + how.weights
    if not config.attending:
        attention = 0
    if how.fused:
        # While it scans, the scan's output; then the norm's as well, and what goes out.
        scan, inner = _scanning(config, how), size.inner * how.element
        of_state = size.convolved * size.d_conv * how.element // how.sequence
        held = max(
            inner + scan.forward // (how.batch * how.sequence),
            2 * inner + dim * how.element + scan.final // (how.batch * how.sequence),
        )
        return max(before + held + of_state, attention)
    # The last chunk's decays, in FP64, and weights; while these are made more of the kind, then the
    # scan's outputs, by chunk and together, D x, and their sum.
    of_chunk = min(CHUNK, how.sequence) ** 2 * size.n_heads // how.sequence
    before += 4 * size.inner + 10 * of_chunk + max(3 * 4 * size.inner, 10 * of_chunk)
    return max(before, attention)
