"""Checkpointing, fused addition, compilation, Triton: another cost, not another result."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hang_limit import HANG_S
from torch._subclasses.fake_tensor import FakeTensorMode

from models import FAMILIES

MAMBA2 = FAMILIES["mamba2"]


SMALL = dataclasses.replace(
    MAMBA2.presets["tiny"], dim=32, n_layers=4, head_dim=16, d_state=8, max_sequence=96
)


@pytest.fixture
def model():
    return MAMBA2.materialise(SMALL, dtype=torch.float64, seed=3)


@pytest.fixture
def two_layers():
    torch.compiler.reset()
    config = dataclasses.replace(SMALL, n_layers=2)  # of each kind one
    yield MAMBA2.materialise(config, dtype=torch.float64, seed=3)
    torch.compiler.reset()


def gradients(model, loss, tokens_BS, targets_BS):
    model.zero_grad()
    value = loss(tokens_BS, targets_BS)
    value.backward()
    return value.detach(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("mode", "blocks", "fused"), [("full", 4, 0), ("selective", 2, 0), ("none", 0, 3)]
)
def test_checkpointed_fused_or_not_the_gradients_are_the_same(
    model, tokens_BS, targets_BS, mode, blocks, fused
):
    expected = gradients(model, model.loss, tokens_BS, targets_BS)
    share = model.metrics()["ssm_share"].clone()
    assert model.checkpointed_blocks == model.fused_additions == 0
    model.set_checkpointing(mode)
    torch.testing.assert_close(gradients(model, model.loss, tokens_BS, targets_BS), expected)
    assert (model.checkpointed_blocks, model.fused_additions) == (blocks, 0)
    model.set_fused_add_norm(True)
    torch.testing.assert_close(gradients(model, model.loss, tokens_BS, targets_BS), expected)
    assert (model.checkpointed_blocks, model.fused_additions) == (blocks, fused)
    torch.testing.assert_close(model.metrics()["ssm_share"], share)


@pytest.mark.parametrize(("mode", "fused"), [("none", True), ("full", False)])
def test_the_loss_and_its_gradients_compile_whole(two_layers, tokens_BS, targets_BS, mode, fused):
    expected = gradients(two_layers, two_layers.loss, tokens_BS, targets_BS)
    two_layers.set_checkpointing(mode)
    two_layers.set_fused_add_norm(fused)
    loss = torch.compile(two_layers.loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(two_layers, loss, tokens_BS, targets_BS), expected)


@torch.no_grad()
def test_prefill_and_decode_compile_whole_and_once_for_all_positions(two_layers, tokens_BS):
    eager_cache, cache = two_layers.new_cache(2, 20), two_layers.new_cache(2, 20)
    step = torch.compile(two_layers, backend="aot_eager", fullgraph=True)
    counters = torch._dynamo.utils.counters
    expected = two_layers(tokens_BS[:, :5], cache=eager_cache)
    torch.testing.assert_close(step(tokens_BS[:, :5], cache=cache), expected)
    for i in range(5, 9):
        if i == 6:
            graphs = counters["stats"]["unique_graphs"]
        position, token_B1 = torch.tensor(i), tokens_BS[:, i : i + 1]
        expected = two_layers(token_B1, cache=eager_cache, position=position)
        torch.testing.assert_close(step(token_B1, cache=cache, position=position), expected)
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.sample(2)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("fused", [False, True])
def test_no_step_needs_a_value_on_the_host(two_layers, tokens_BS, checkpointing, fused):
    two_layers.set_checkpointing(checkpointing)
    two_layers.set_fused_add_norm(fused)
    cache, position = two_layers.new_cache(2, 17), torch.tensor(5)
    with FakeTensorMode(allow_non_fake_inputs=True):
        two_layers.loss(tokens_BS, tokens_BS).backward()
        with torch.no_grad():
            two_layers(tokens_BS[:, :5], cache=cache, last_only=True)
            two_layers(tokens_BS[:, 5:9], cache=cache, position=position)
            two_layers(tokens_BS[:, 5:6], cache=cache, position=position)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests of the GPU compare them there")
def test_triton_in_the_interpreter_agrees_with_torch_in_every_operator():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "mamba2_interpreted.py")],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    used = json.loads(done.stdout)
    assert {tuple(by) for by in used.values()} == {("triton",)}
    assert set(used) == {
        *("rms_norm", "add_rms_norm", "causal_conv1d", "ssd_scan", "ssd_step"),
        *("gated_rms_norm", "rope", "attention"),
    }
