"""MAHIA-X: a classifier of text with tabular data; its four parts can also be used separately.

Blocks of ``MetaAttentionKernel`` compute the tokens, which are then averaged; two linears compute
the table. The fused vector retrieves from a ``GraphDiffusionMemory`` and runs through the layers of
a ``DynamicNeuroFabric`` that its gates choose. With a capacity below 1, this choice depends on the
other samples of the batch (see there). The kernel library chooses a part's fused or standard path;
``with kernels.using(**MetaAttentionKernel.STANDARD)`` chooses it by hand.
"""

from __future__ import annotations

import dataclasses

from torch import Generator

from models.configs.mahia import MahiaConfig, check
from models.costs.mahia import costs
from models.execution.compiled import CompilationFailed
from models.family import Batch, Family
from models.hybrid_model import HybridEfficientModel
from models.hybrid_task import draw_hybrid
from models.layers.graph_memory import GraphDiffusionMemory
from models.layers.meta_attention import MetaAttentionKernel
from models.layers.neuro_fabric import DynamicNeuroFabric
from models.model import Metric

__all__ = [
    "FAMILY",
    "CompilationFailed",
    "DynamicNeuroFabric",
    "GraphDiffusionMemory",
    "HybridEfficientModel",
    "MahiaConfig",
    "MetaAttentionKernel",
]


def construct(config: MahiaConfig) -> HybridEfficientModel:
    """Build the model's structure, on the current default device."""
    return HybridEfficientModel(**dataclasses.asdict(config))


def operators(config: MahiaConfig, workload: str) -> frozenset[str]:
    """Return the operators that a step calls, in any workload."""
    names = {"rms_norm", "rope", "swiglu", "attention", "graph_diffusion"}
    names |= {"token_router", "token_scatter", "linear"}
    if config.use_fourier:
        names.add("fourier_mix")
    if config.use_moe:
        names |= {"moe_gating", "moe_experts"}
    return frozenset(names)


def draw(config: MahiaConfig, batch: int, sequence: int, generator: Generator) -> Batch:
    """Draw a batch of the synthetic task of ``models.hybrid_task``, on the CPU."""
    classify = config.task == "classification"
    sizes = config.vocab_size, config.tab_dim, config.output_dim
    return draw_hybrid(*sizes, batch, sequence, classify, generator)


PRESETS = {
    # The document measures nothing larger than its tests: width 32, 64 slots, 8 fabric layers.
    "tiny": MahiaConfig(
        vocab_size=1000,
        text_seq_len=32,
        tab_dim=20,
        embed_dim=32,
        tab_hidden_dim=32,
        fused_dim=64,
        n_layers=2,
    ),
    "small": MahiaConfig(),
    "base": MahiaConfig(
        vocab_size=32_000,
        text_seq_len=256,
        output_dim=16,
        embed_dim=512,
        tab_hidden_dim=512,
        fused_dim=512,
        n_layers=8,
        n_heads=8,
    ),
    "medium": MahiaConfig(
        vocab_size=32_000,
        text_seq_len=512,
        output_dim=16,
        embed_dim=768,
        tab_hidden_dim=1024,
        fused_dim=1024,
        n_layers=12,
        n_heads=12,
        memory_size=128,
    ),
    "large": MahiaConfig(
        vocab_size=32_000,
        text_seq_len=1024,
        tab_dim=256,
        output_dim=64,
        embed_dim=1024,
        tab_hidden_dim=2048,
        fused_dim=2048,
        n_layers=24,
        n_heads=16,
        memory_size=128,
        max_layers=16,
    ),
}

SUGGESTIONS = {
    "tiny": {"cuda": (256, 32), "cpu": (16, 32)},
    "small": {"cuda": (256, 128), "cpu": (4, 64)},
    "base": {"cuda": (64, 256), "cpu": (2, 32)},
    "medium": {"cuda": (32, 512), "cpu": (2, 32)},
    "large": {"cuda": (8, 1024), "cpu": (2, 16)},
}

METRICS = (
    Metric(
        name="layers_used",
        title="Fabric layers used",
        unit="",
        help="Fraction of the samples that ran this many layers of the fabric; spread out if the "
        "depth depends on the input.",
        rows="fabric",
        columns="depth",
    ),
    Metric(
        name="fabric_gate",
        title="Fabric gate",
        unit="",
        help="Mean gate of a fabric layer for the samples it computes; near 0 it does nothing.",
        rows="fabric",
        columns="layer",
    ),
    Metric(
        name="memory_entropy",
        title="Memory retrieval entropy",
        unit="",
        help="Entropy of the retrieval relative to equal weights; at 1 no slot is preferred.",
        rows="memory",
    ),
    Metric(
        name="fourier_gate",
        title="Fourier gate",
        unit="",
        help="Mean fraction of a head's output that comes from the Fourier branch; at 0 the head "
        "is attention alone.",
        columns="head",
    ),
    Metric(
        name="expert_share",
        title="Expert share",
        unit="",
        help="Fraction of the choices that went to an expert; equal if the load is balanced.",
        columns="expert",
    ),
)

FAMILY = Family(
    name="mahia",
    title="MAHIA-X",
    help=__doc__,
    config=MahiaConfig,
    presets=PRESETS,
    suggestions=SUGGESTIONS,
    construct=construct,
    check=check,
    costs=costs,
    operators=operators,
    workloads=("forward", "train"),
    length_field="text_seq_len",
    metrics=METRICS,
    draw=draw,
)
