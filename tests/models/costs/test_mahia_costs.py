"""MAHIA-X's estimates of parameters, FLOPs and memory agree with what torch counts."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mahia_samples import MAHIA, drawn, varied
from torch.utils.flop_counter import FlopCounterMode

import kernels
from models import ConfigurationError

COUNTS = {
    "tiny": 343_242,
    "small": 3_250_578,
    "base": 61_071_952,
    "medium": 181_967_776,
    "large": 897_201_600,
}


@pytest.mark.parametrize("preset", MAHIA.presets)
def test_the_formula_counts_the_parameters_of_every_preset(preset):
    config = MAHIA.presets[preset]
    counted = sum(parameter.numel() for parameter in MAHIA.build(config).parameters())
    print(f"mahia {preset}: {counted:,} parameters")
    assert MAHIA.parameter_count(config) == counted == COUNTS[preset]


@given(
    head_dim=st.integers(1, 9).map(lambda n: 2 * n),
    n_heads=st.integers(1, 5),
    vocab_size=st.integers(2, 300),
    tab_dim=st.integers(1, 30),
    output_dim=st.integers(2, 9),
    tab_hidden_dim=st.integers(1, 40),
    fused_dim=st.integers(1, 40),
    memory_size=st.integers(1, 20),
    n_layers=st.integers(1, 3),
    max_layers=st.integers(1, 4),
    n_experts=st.integers(2, 5),
    use_moe=st.booleans(),
    use_fourier=st.booleans(),
    mlp_ratio=st.floats(0.25, 8),
)
def test_the_formula_counts_the_parameters_of_any_configuration(head_dim, n_heads, **fields):
    overrides = {"embed_dim": head_dim * n_heads, "n_heads": n_heads, **fields}
    config = MAHIA.configure("tiny", overrides)
    counted = sum(parameter.numel() for parameter in MAHIA.build(config).parameters())
    assert MAHIA.parameter_count(config) == counted


@pytest.mark.parametrize("capacity", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("causal", [False, True])
def test_forward_flops_equal_what_torch_counts(capacity, causal):
    config, batch, sequence = varied(capacity=capacity, causal=causal), 8, 7
    model = MAHIA.materialise(config)
    inputs, _ = drawn(config, batch, sequence)
    choices = {"attention": "manual", "fourier_mix": "torch"}
    with kernels.using(**choices), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    future = 4 * batch * 2 * 16 * sequence * (sequence - 1) // 2 if causal else 0
    assert counter.get_total_flops() == MAHIA.flops(config, batch, sequence) + future


def test_flops_fall_with_the_capacity_of_the_fabric():
    quarter, half, full = (
        MAHIA.flops(dataclasses.replace(MAHIA.presets["base"], capacity=c), 64, 1)
        for c in (0.25, 0.5, 1.0)
    )
    assert quarter < half < full
    assert full - half == pytest.approx(2 * (half - quarter), rel=1e-6)


def saved_bytes(config, checkpointing, batch):
    """Return the bytes that autograd saves for the backward pass, without weights."""
    model = MAHIA.materialise(config)
    model.set_checkpointing(checkpointing)
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    inputs, targets = drawn(config, batch)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.loss(*inputs, *targets)
    return sum(size for size, _ in storages.values())


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_activations_grow_with_depth_as_estimated(checkpointing):
    few = MAHIA.configure("tiny", {"text_seq_len": 128, "embed_dim": 64, "max_layers": 1})
    many = dataclasses.replace(few, n_layers=8)
    step = {"workload": "train", "batch": 4, "sequence": 128, "fused": False}
    step |= {"checkpointing": checkpointing}
    measured = [saved_bytes(config, checkpointing, 4) for config in (few, many)]
    estimated = [MAHIA.footprint(config, **step).activations for config in (few, many)]
    # On a CPU torch's norm keeps its input and its result in FP32 where a GPU keeps the input.
    blocks = {"none": 6, "selective": 3, "full": 0}[checkpointing]
    growth = measured[1] - measured[0] - blocks * 4 * 128 * 64 * 2 * 4
    assert estimated[1] - estimated[0] == pytest.approx(growth, rel=0.01)


def test_activations_grow_with_the_batch_as_estimated():
    config = varied(text_seq_len=1, fused_dim=256, tab_hidden_dim=256, max_layers=8)
    measured = saved_bytes(config, "none", 128) - saved_bytes(config, "none", 64)
    step = {"workload": "train", "sequence": 1, "fused": False}
    estimated = [MAHIA.footprint(config, batch=batch, **step).activations for batch in (64, 128)]
    assert estimated[1] - estimated[0] == pytest.approx(measured, rel=0.15)


def test_what_does_not_fit_is_refused_before_anything_is_allocated():
    tiny = MAHIA.presets["tiny"]
    step = {"workload": "train", "batch": 4, "memory_bytes": 10**9}
    MAHIA.check_memory(tiny, sequence=32, **step)
    with pytest.raises(ConfigurationError, match="33 is longer than text_seq_len = 32; shorten it"):
        MAHIA.check_memory(tiny, sequence=33, **step)
    with pytest.raises(ConfigurationError, match="897,201,600 parameters with batch 4"):
        MAHIA.check_memory(MAHIA.presets["large"], sequence=32, **step)
    weights = MAHIA.materialise(tiny).weights().values()
    step = {"workload": "train", "batch": 4, "sequence": 32}
    estimate = MAHIA.footprint(tiny, rope_shared=True, **step)
    assert estimate.weights == sum(weight.nbytes for weight in weights) == estimate.gradients
    assert estimate.tables == MAHIA.materialise(tiny).rope_cache_bytes()
