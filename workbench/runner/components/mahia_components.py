"""MAHIA-X's three components as separate models: ``FILE.py:function`` names one.

Those whose name ends in ``as_tested`` have the sizes of the document's own tests; the others are
large enough for a GPU. What a component computes with is chosen by the toggles of its operators.
"""

# Shapes: B batch, S tokens, E width.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import kernels
from models.mahia import DynamicNeuroFabric, GraphDiffusionMemory, MetaAttentionKernel

WIDTH, TOKENS, HEADS = 768, 4096, 12
SLOTS, LAYERS = 64, 8  # the document's defaults
TESTED_WIDTH, TESTED_TOKENS = 32, 16

# The components' operators: only operators that this file names can be chosen for its models.
OPERATORS = (
    kernels.attention,
    kernels.fourier_mix,
    kernels.graph_diffusion,
    kernels.rms_norm,
    kernels.swiglu,
    kernels.token_router,
    kernels.token_scatter,
)

Built = tuple[nn.Module, Callable[[int], Tensor]]


def meta_attention() -> Built:
    """Build attention with Fourier mixing over a long sequence: (B, S, E) -> (B, S, E)."""
    return MetaAttentionKernel(WIDTH, True, n_heads=HEADS), _inputs(TOKENS, WIDTH)


def graph_memory() -> Built:
    """Build diffusion over a graph of memory slots: (B, E) -> (B, E)."""
    return GraphDiffusionMemory(WIDTH, SLOTS), _inputs(WIDTH)


def neuro_fabric() -> Built:
    """Build layers that choose their inputs: (B, S, E) -> (B, S, E)."""
    return DynamicNeuroFabric(WIDTH, LAYERS), _inputs(TOKENS, WIDTH)


def meta_attention_as_tested() -> Built:
    """Return ``meta_attention`` at the size of the document's test."""
    return MetaAttentionKernel(TESTED_WIDTH, True), _inputs(TESTED_TOKENS, TESTED_WIDTH)


def graph_memory_as_tested() -> Built:
    """Return ``graph_memory`` at the size of the document's test."""
    return GraphDiffusionMemory(TESTED_WIDTH, SLOTS), _inputs(TESTED_WIDTH)


def neuro_fabric_as_tested() -> Built:
    """Return ``neuro_fabric`` for vectors (B, E), which fail in the document's test."""
    return DynamicNeuroFabric(TESTED_WIDTH, LAYERS), _inputs(TESTED_WIDTH)


def _inputs(*sizes: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, *sizes)
