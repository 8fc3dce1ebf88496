"""HYDRA's routings on a GPU: no host, one graph for every choice, and time and memory saved."""

import dataclasses

import pytest
import torch
from on_gpu import (
    assert_compiled_decode_step_is_captured,
    assert_replay_is_eager,
    decoded_by_one_graph,
    step_ms,
    tokens,
    without_waiting,
)
from routed import config_of

import kernels
from models import FAMILIES

HYDRA = FAMILIES["hydra"]
LENGTH = 64
COMBINATIONS = [
    "ccgqa depths recursions",
    "depths recursions by token",
    "ccgqa recursions sharing keys",
]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
every_combination = pytest.mark.parametrize("combination", COMBINATIONS)


def routed(combination, dtype=torch.float32, **fields):
    """Make a model on the GPU whose routers differ from token to token."""
    sizes = {"dim": 128, "max_sequence": LENGTH}
    config = dataclasses.replace(config_of(combination), **sizes | fields)
    model = HYDRA.materialise(config, "cuda", dtype, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "router" in name:
                parameter.mul_(50)
    return model


@every_combination
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_no_step_waits_for_the_host(combination, checkpointing):
    model = routed(combination, torch.bfloat16)
    model.set_checkpointing(checkpointing)
    tokens_BS, position = tokens(2, LENGTH), torch.tensor(7, device="cuda")
    cache = model.new_cache(2, LENGTH)

    def work():
        model.train().loss(tokens_BS, tokens_BS).backward()
        model.eval()
        with torch.no_grad():
            model(tokens_BS, cache=cache, last_only=True)
            model(tokens_BS[:, 7:20], cache=cache, position=position)
            model(tokens_BS[:, :1], cache=cache, position=position)

    without_waiting(work)


@every_combination
def test_a_captured_training_step_routes_each_batch_anew(combination):
    assert_replay_is_eager(routed(combination), LENGTH, 1e-3, 1e-5)


@every_combination
def test_one_captured_decode_step_serves_every_position_and_choice(combination):
    model = routed(combination).eval()
    for decoded_BV, whole_BV in decoded_by_one_graph(model, tokens(2, LENGTH)):
        torch.testing.assert_close(decoded_BV, whole_BV, rtol=1e-3, atol=1e-4)


@every_combination
def test_the_kernels_give_what_torch_gives(combination):
    model, tokens_BS = routed(combination), tokens(2, LENGTH)
    result = []
    for choice in ("torch", "triton"):
        attention = "manual" if choice == "torch" or "sharing" in combination else "triton"
        model.zero_grad()
        kernels.reset_usage()
        with kernels.using(all=choice, attention=attention):
            loss = model.loss(tokens_BS, tokens_BS)
            loss.backward()
        assert kernels.usage()["rms_norm"].keys() == {choice}
        result.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for first, other in zip(*result, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-4)


def test_a_compiled_decode_step_is_captured_once_the_cache_is_marked_static():
    model = routed("ccgqa depths recursions").eval()
    assert_compiled_decode_step_is_captured(model, LENGTH)


WIDE = dataclasses.replace(
    HYDRA.presets["medium"], vocabulary=256, n_layers=6, max_sequence=2048, depth_every=1
)


@pytest.mark.parametrize("trains", [True, False])
def test_time_falls_with_the_capacity_as_the_flops_do(trains):
    batch, sequence, times, flops = 8, 2048, [], []
    for capacity in (1.0, 0.5, 0.125):
        config = dataclasses.replace(WIDE, mixture_of_depths=True, depth_capacity=capacity)
        times.append(step_ms(HYDRA, config, batch, sequence, trains))
        flops.append(HYDRA.flops(config, batch, sequence))
    print(f"depths, {trains=}: ms {times}, FLOPs {[f / flops[0] for f in flops]}")
    for time, work in zip(times, flops, strict=True):
        assert time / times[0] < work / flops[0] + 0.2
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("routing", ["expert", "token"])
def test_recursions_take_the_time_of_the_tokens_that_take_them(trains, routing):
    batch, sequence = 8, 2048
    applied = dataclasses.replace(WIDE, n_layers=4 * 3 + 2)
    recursions = dataclasses.replace(
        WIDE, n_layers=3, mixture_of_recursions=True, recursions=4, recursion_routing=routing
    )
    times = [step_ms(HYDRA, config, batch, sequence, trains) for config in (applied, recursions)]
    flops = [HYDRA.flops(config, batch, sequence) for config in (applied, recursions)]
    print(f"recursions, {trains=}, {routing}: ms {times}, FLOPs {flops[1] / flops[0]}")
    assert times[1] / times[0] < flops[1] / flops[0] + 0.2 < 1


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_peak_of_a_training_step_of_the_published_default_is_as_estimated(checkpointing):
    config, batch, sequence = HYDRA.presets["published"], 4, 1024
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = HYDRA.materialise(config, "cuda")
    model.set_checkpointing(checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens_BS = tokens(batch, sequence)
    for _ in range(2):  # the first step makes the optimizer's moments
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss(tokens_BS, tokens_BS)
        loss.backward()
        optimizer.step()
    measured = torch.cuda.max_memory_allocated() - before
    step = {"workload": "train", "batch": batch, "sequence": sequence, "precision": "amp"}
    estimate = HYDRA.footprint(config, **step, checkpointing=checkpointing)
    print(f"published, {checkpointing=}: measured {measured:,}, estimated {estimate.total:,}")
    assert estimate.total == pytest.approx(measured, rel=0.1)
