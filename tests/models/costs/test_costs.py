"""The estimates of FLOPs and memory agree with what torch counts."""

import dataclasses

import pytest
import torch
from peak_bytes import saved_for_backward, saved_more_on_a_cpu
from torch.utils.flop_counter import FlopCounterMode

import kernels
from models import FAMILIES

HYDRA = FAMILIES["hydra"]


def counted_flops(work):
    # By hand, because not every torch counts its own attention on every device.
    with kernels.using(attention="manual"), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def future_flops(config, batch, sequence):
    """Count FLOPs of pairs above the diagonal, which attention by hand computes."""
    return 4 * batch * config.n_layers * config.dim * sequence * (sequence - 1) // 2


def test_forward_flops_equal_what_torch_counts(model, config, tokens_BS):
    with torch.no_grad():
        counted = counted_flops(lambda: model(tokens_BS))
    expected = HYDRA.flops(config, 2, 17) + future_flops(config, 2, 17)
    assert counted == expected


def test_decode_flops_equal_what_torch_counts(model, config, tokens_BS):
    cache = model.new_cache(2, 17)
    with torch.no_grad():
        model(tokens_BS[:, :16], cache=cache)
        position = torch.tensor(16)
        counted = counted_flops(lambda: model(tokens_BS[:, 16:], cache=cache, position=position))
    assert counted == HYDRA.flops(config, 2, 1, context=16)


def test_a_prefill_that_needs_one_row_of_logits_saves_the_others(model, config, tokens_BS):
    with torch.no_grad():
        cache = model.new_cache(2, 17)
        counted = counted_flops(lambda: model(tokens_BS, cache=cache, last_only=True))
    expected = HYDRA.flops(config, 2, 17, last_only=True) + future_flops(config, 2, 17)
    assert counted == expected
    assert HYDRA.flops(config, 2, 17) - HYDRA.flops(config, 2, 17, last_only=True) == (
        2 * 2 * 16 * config.dim * config.rows
    )


def test_training_costs_three_forward_passes(config):
    assert HYDRA.flops(config, 2, 17, training=True) == 3 * HYDRA.flops(config, 2, 17)


@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_activations_grow_with_depth_as_estimated(precision, checkpointing):
    few = dataclasses.replace(HYDRA.presets["tiny"], n_layers=2)
    many = dataclasses.replace(few, n_layers=8)
    tokens_BS = torch.zeros(2, 256, dtype=torch.int64)
    step = {"workload": "train", "batch": 2, "sequence": 256, "fused": False}
    step |= {"precision": precision, "checkpointing": checkpointing}
    measured = [
        saved_for_backward(HYDRA, c, precision, checkpointing, tokens_BS) for c in (few, many)
    ]
    estimated = [HYDRA.footprint(c, **step).saved for c in (few, many)]
    more_per_block = tokens_BS.numel() * saved_more_on_a_cpu(few.dim, precision)
    blocks = {"none": 6, "selective": 3, "full": 0}[checkpointing]
    growth = measured[1] - measured[0] - blocks * more_per_block
    assert estimated[1] - estimated[0] == pytest.approx(growth, rel=0.01)


def test_weights_gradients_and_optimizer_are_counted_exactly(config, tokens_BS, targets_BS):
    model = HYDRA.materialise(config)
    optimizer = torch.optim.AdamW(model.parameters())
    model.loss(tokens_BS, targets_BS).backward()
    optimizer.step()
    step = {"workload": "train", "batch": 2, "sequence": 17}
    estimate = HYDRA.footprint(config, rope_shared=True, **step)
    assert estimate.weights == sum(p.nbytes for p in model.parameters())
    assert estimate.gradients == sum(p.grad.nbytes for p in model.parameters())
    moments = [
        value.nbytes
        for state in optimizer.state.values()
        for key, value in state.items()
        if key != "step"
    ]
    assert estimate.optimizer == sum(moments)
    assert estimate.tables == model.rope_cache_bytes()
    highest = max(estimate.activations, estimate.gradients)
    assert highest <= estimate.together <= estimate.activations + estimate.gradients


def test_checkpointing_and_narrow_numbers_shrink_the_estimate():
    config = HYDRA.presets["base"]
    step = {"workload": "train", "batch": 8, "sequence": 1024}
    none, selective, full = (
        HYDRA.footprint(config, **step, checkpointing=mode).activations
        for mode in ("none", "selective", "full")
    )
    assert full < selective < none
    fp32, half = (HYDRA.footprint(config, **step, precision=p) for p in ("fp32", "half"))
    assert half.weights * 2 == fp32.weights
    assert half.activations < fp32.activations


def test_inference_keeps_no_gradients_and_only_decoding_keeps_a_cache():
    config = HYDRA.presets["base"]
    for workload in ("forward", "prefill", "decode"):
        estimate = HYDRA.footprint(config, workload=workload, batch=2, sequence=64)
        assert estimate.gradients == estimate.optimizer == 0
        assert (estimate.cache > 0) == (workload != "forward")


@pytest.mark.parametrize(("sequence", "context"), [(1, 0), (40, 0), (1, 50), (7, 30), (40, 5)])
@pytest.mark.parametrize("window", [1, 8, 32, 64])
def test_a_window_costs_the_pairs_that_it_leaves(sequence, context, window):
    preset = HYDRA.presets["tiny"]
    plain, windowed = (
        HYDRA.flops(dataclasses.replace(preset, window=w), 1, sequence, context=context)
        for w in (0, window)
    )
    left_out = sum(max(0, context + i + 1 - window) for i in range(sequence))
    per_pair = 4 * preset.dim * preset.n_layers  # a score and its share of the values
    assert plain - windowed == per_pair * left_out
