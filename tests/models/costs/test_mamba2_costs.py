"""The hybrid's estimated costs equal what its operators state and torch counts."""

import dataclasses

import pytest
import torch
from peak_bytes import saved_for_backward
from torch.utils.flop_counter import FlopCounterMode

import kernels
from models import FAMILIES

MAMBA2 = FAMILIES["mamba2"]
CONFIG = dataclasses.replace(
    MAMBA2.presets["tiny"], dim=32, n_layers=4, head_dim=16, d_state=8, max_sequence=4096
)
FREE = dataclasses.replace(CONFIG, attention_every=0)


def scan_inputs(config, batch, sequence):
    size = config.mixer
    heads = torch.zeros(size.n_heads)
    maps_BSGN = torch.zeros(batch, sequence, size.n_groups, size.d_state)
    return {
        "x_BLHP": torch.zeros(batch, sequence, size.n_heads, size.head_dim),
        "dt_BLH": torch.zeros(batch, sequence, size.n_heads),
        "A_H": heads, "B_BLGN": maps_BSGN, "C_BLGN": maps_BSGN, "D_H": heads, "dt_bias_H": heads,
        "initial_state_BHPN": None, "dt_softplus": True,
    }  # fmt: skip


def counted(work):
    with kernels.using(attention="manual"), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("config", [CONFIG, FREE], ids=["hybrid", "attention-free"])
def test_flops_equal_what_torch_counts_where_it_counts(config):
    model, tokens_BS = MAMBA2.materialise(config), torch.zeros(2, 17, dtype=torch.int64)
    costs = MAMBA2.costs(config)
    inputs = scan_inputs(config, 2, 17)
    with torch.no_grad():
        total = counted(lambda: model(tokens_BS))
        scans = config.n_layers * counted(lambda: kernels.ssd_scan(**inputs, impl="torch"))
    future = 4 * 2 * config.attending * config.dim * 17 * 16 // 2  # a causal kernel skips them
    scan = 2 * costs.scan_per_token * 2 * 17
    assert total - scans == MAMBA2.flops(config, 2, 17) - scan + future


def test_the_scan_and_the_convolution_cost_what_their_operators_say():
    size, per_token = CONFIG.mixer, MAMBA2.costs(CONFIG).scan_per_token
    scan = kernels.OPS["ssd_scan"].cost(**scan_inputs(CONFIG, 2, 17)).forward.flops
    convolution = kernels.OPS["causal_conv1d"].cost(
        x_BLD=torch.zeros(2, 17, size.convolved),
        weight_DW=torch.zeros(size.convolved, size.d_conv),
        bias_D=None,
        initial_state_BDW=None,
        activation=None,
    )
    assert 2 * per_token * 2 * 17 == CONFIG.n_layers * (scan + convolution.forward.flops)


def test_without_attention_cost_is_linear_in_the_sequence():
    lengths = (128, 1024, 131_072)
    per_token = {MAMBA2.flops(FREE, 1, length) // length for length in lengths}
    assert len(per_token) == 1
    assert MAMBA2.flops(CONFIG, 1, 2048) > 2 * MAMBA2.flops(CONFIG, 1, 1024)
    saved = [MAMBA2.footprint(FREE, workload="train", batch=1, sequence=n) for n in (1024, 2048)]
    assert saved[1].activations == 2 * saved[0].activations


def test_work_that_is_done_is_linear_in_the_sequence_without_attention():
    model = MAMBA2.materialise(FREE)
    with torch.no_grad():
        work = [counted(lambda n=n: model(torch.zeros(1, n).long())) for n in (128, 256, 512)]
    assert work[1] == 2 * work[0] and work[2] == 2 * work[1]


@pytest.mark.sample(4)
@pytest.mark.parametrize("precision", ["fp32", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("config", [CONFIG, FREE], ids=["hybrid", "attention-free"])
def test_activations_of_the_pytorch_kernels_grow_with_depth_as_estimated(
    config, precision, checkpointing
):
    few = dataclasses.replace(config, dim=128, head_dim=32, d_state=32, n_layers=2)
    many = dataclasses.replace(few, n_layers=6)
    tokens_BS = torch.zeros(1, 256, dtype=torch.int64)
    step = {"workload": "train", "batch": 1, "sequence": 256, "fused": False}
    step |= {"precision": precision, "checkpointing": checkpointing}
    measured = [
        saved_for_backward(MAMBA2, c, precision, checkpointing, tokens_BS) for c in (few, many)
    ]
    estimated = [MAMBA2.footprint(c, **step).activations for c in (few, many)]
    # Roughly: torch's norm and attention keep more on a CPU than on a GPU.
    assert estimated[1] - estimated[0] == pytest.approx(measured[1] - measured[0], rel=0.1)


def test_weights_gradients_and_optimizer_are_counted_exactly(tokens_BS, targets_BS):
    model = MAMBA2.materialise(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    model.loss(tokens_BS, targets_BS).backward()
    optimizer.step()
    step = {"workload": "train", "batch": 2, "sequence": 17}
    estimate = MAMBA2.footprint(CONFIG, rope_shared=True, **step)
    assert estimate.weights == sum(p.nbytes for p in model.parameters())
    assert estimate.gradients == sum(p.grad.nbytes for p in model.parameters())
    moments = [
        state[key].nbytes for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")
    ]
    assert estimate.optimizer == sum(moments)
    assert estimate.tables == model.rope_cache_bytes()
