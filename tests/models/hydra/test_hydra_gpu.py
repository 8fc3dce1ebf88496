"""HYDRA on a GPU: nothing waits for the host, every step can be captured, memory as estimated."""

import dataclasses

import pytest
import torch
from on_gpu import (
    assert_compiled_decode_step_is_captured,
    assert_replay_is_eager,
    decoded_by_one_graph,
    estimated_and_measured,
    tokens,
    without_waiting,
)

from models import FAMILIES

HYDRA = FAMILIES["hydra"]
LENGTH = 64

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


SMALL = dataclasses.replace(HYDRA.presets["tiny"], n_layers=2)


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def half_model(request):
    return HYDRA.materialise(SMALL, "cuda", request.param, seed=3)


def test_a_seed_gives_the_same_weights_as_on_the_cpu():
    here = HYDRA.materialise(HYDRA.presets["tiny"], "cuda", seed=9).weights()
    there = HYDRA.materialise(HYDRA.presets["tiny"], "cpu", seed=9).weights()
    for name, weight in here.items():
        assert weight.is_cuda and torch.equal(weight.cpu(), there[name]), name


def test_single_precision_equals_the_cpu():
    config = HYDRA.presets["tiny"]
    here = HYDRA.materialise(config, "cuda", seed=9)(tokens(2, 100))
    there = HYDRA.materialise(config, "cpu", seed=9)(tokens(2, 100).cpu())
    torch.testing.assert_close(here.cpu(), there, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_no_step_waits_for_the_host(half_model, checkpointing):
    tokens_BS, position = tokens(2, LENGTH), torch.tensor(7, device="cuda")
    half_model.set_checkpointing(checkpointing)
    cache = half_model.new_cache(2, LENGTH)

    def work():
        half_model.loss(tokens_BS, tokens_BS).backward()
        with torch.no_grad():
            half_model(tokens_BS, cache=cache, last_only=True)
            half_model(tokens_BS[:, :1], cache=cache, position=position)

    without_waiting(work)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_training_step_can_be_captured(half_model, checkpointing):
    half_model.set_checkpointing(checkpointing)
    assert_replay_is_eager(half_model, LENGTH, 0.02, 1e-3)


def test_one_captured_decode_step_serves_every_position(half_model):
    for decoded_BV, whole_BV in decoded_by_one_graph(half_model, tokens(2, LENGTH)):
        torch.testing.assert_close(decoded_BV, whole_BV, rtol=0.05, atol=0.05)


def test_a_compiled_decode_step_is_captured_once_the_cache_is_marked_static():
    model = HYDRA.materialise(SMALL, "cuda", torch.bfloat16, seed=3)
    assert_compiled_decode_step_is_captured(model, LENGTH)


@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_peak_of_a_training_step_is_as_estimated(precision, checkpointing):
    config, batch, sequence = HYDRA.presets["base"], 8, 1024
    estimate, measured = estimated_and_measured(
        HYDRA, config, batch, sequence, precision, checkpointing
    )
    assert estimate == pytest.approx(measured, rel=0.1)
