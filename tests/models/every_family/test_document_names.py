"""Names and arguments as the documents write them, around what is here."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import kernels
from models import AdaptiveFlashAttention, ConfigurationError
from models.adaattn import AdaAttention
from models.moe import FullyOptimizedMoESystem, MoEConfig

SIZES = {"input_dim": 32, "hidden_dim": 32, "n_layers": 1, "num_experts": 4, "top_k": 2,
         "n_heads": 2, "n_kv_heads": 2}  # fmt: skip
# The guide's three configurations.
DEVELOPMENT = {"use_compile": False, "use_amp": True, "use_gradient_checkpointing": True}
INFERENCE = {"use_compile": True, "compile_mode": "max-autotune", "use_amp": True}


def test_the_system_takes_its_switches_from_the_configuration_as_the_guide_writes_it():
    config = MoEConfig(**SIZES, **DEVELOPMENT, use_cuda_graph=False)
    assert (config.use_amp, config.use_compile, config.compile_mode) == (True, False, "default")
    system = FullyOptimizedMoESystem(config)
    assert system.use_amp and system.use_gradient_checkpointing and not system.use_compile
    assert FullyOptimizedMoESystem(config, use_amp=False).use_amp is False
    compiled = FullyOptimizedMoESystem(MoEConfig(**SIZES, **INFERENCE))
    assert compiled.use_compile and compiled._compiler["mode"] == "max-autotune"


def test_the_switches_are_no_sizes_and_make_no_other_model():
    plain, switched = MoEConfig(**SIZES), MoEConfig(**SIZES, **INFERENCE)
    assert plain == switched and hash(plain) == hash(switched)
    assert "use_compile" not in {field.name for field in dataclasses.fields(MoEConfig)}
    assert dataclasses.asdict(plain) == dataclasses.asdict(switched)


def test_adaptive_flash_attention_is_the_documents_layer():
    torch.manual_seed(0)
    layer = AdaptiveFlashAttention(embed_dim=32, num_heads=4, precision_mode="auto")
    x = torch.randn(2, 6, 32)
    output, _ = layer(x, x, x)
    torch.manual_seed(0)
    plain = AdaAttention(32, 4, adaptive_rank=False, adaptive_precision=False)
    assert torch.equal(output, plain(x, x, x)[0]), "on a CPU it computes in FP32"
    statistics = layer.get_flash_statistics()
    assert statistics["calls"] == 1 and 0 <= statistics["flash_ratio"] <= 1


def test_its_precision_and_its_kernel_can_be_chosen():
    x = torch.randn(2, 6, 32)
    torch.manual_seed(0)
    half = AdaptiveFlashAttention(32, 4, precision_mode="bf16")
    torch.manual_seed(0)
    single = AdaptiveFlashAttention(32, 4, precision_mode="fp32", enable_flash=False)
    rounded, exact = half(x, x, x)[0], single(x, x, x)[0]
    assert rounded.dtype == exact.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05
    assert single.get_flash_statistics()["by_implementation"] == {"manual": 1}
    assert kernels.chosen()["attention"] == "auto", "the choice ends with the call"
    with pytest.raises(ConfigurationError, match="precision_mode = 'int8' is not one of"):
        AdaptiveFlashAttention(32, 4, precision_mode="int8")
