"""On a GPU, experts that are not chosen cost no time, and shared or narrow keys no memory."""

import dataclasses

import pytest
import torch
from on_gpu import give_back_memory, step_ms, tokens

from models import FAMILIES

HYDRA, MOE = FAMILIES["hydra"], FAMILIES["moe"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("trains", [True, False])
def test_time_falls_with_the_experts_that_a_token_is_sent_to(trains):
    wide = dataclasses.replace(
        MOE.presets["large"], vocabulary=256, n_layers=2, num_experts=32, max_sequence=2048
    )
    batch, sequence, times, flops = 8, 2048, [], []
    for top_k in (8, 4, 1):
        config = dataclasses.replace(wide, top_k=top_k)
        times.append(step_ms(MOE, config, batch, sequence, trains))
        flops.append(MOE.flops(config, batch, sequence))
    print(f"experts, {trains=}: ms {times}, FLOPs {[f / flops[0] for f in flops]}")
    for time, work in zip(times, flops, strict=True):
        assert time / times[0] < work / flops[0] + 0.2
    assert times == sorted(times, reverse=True)


@torch.no_grad()
def test_the_cache_takes_the_memory_that_shared_and_compressed_heads_leave():
    allocated, estimated = [], []
    plain = dataclasses.replace(HYDRA.presets["base"], n_heads=12, n_kv_heads=12, n_layers=4)
    for fields in ({}, {"n_kv_heads": 4}, {"n_kv_heads": 4, "ccgqa": True}):
        config = dataclasses.replace(plain, **fields)
        model = HYDRA.materialise(config, "cuda", torch.bfloat16).eval()
        give_back_memory()
        before = torch.cuda.memory_allocated()
        cache = model.new_cache(16, 2048)
        allocated.append(torch.cuda.memory_allocated() - before)
        model(tokens(16, 2000), cache=cache, last_only=True)  # and it serves
        step = {"workload": "decode", "batch": 16, "sequence": 2048, "precision": "half"}
        estimated.append(HYDRA.footprint(config, **step).cache)
        del cache
    print(f"cache: MiB {[round(size / 2**20) for size in allocated]}")
    for bytes_, estimate in zip(allocated, estimated, strict=True):
        assert bytes_ == pytest.approx(estimate, rel=0.01)
    assert allocated[1] / allocated[0] == pytest.approx(1 / 3, rel=0.01)
    assert allocated[2] / allocated[1] == pytest.approx(1 / 2, rel=0.01)


def test_training_needs_the_memory_that_is_estimated_and_less_with_fewer_key_heads():
    peaks, estimated = [], []
    plain = dataclasses.replace(
        HYDRA.presets["base"], n_heads=12, n_kv_heads=12, n_layers=4, vocabulary=256
    )
    for fields in ({}, {"n_kv_heads": 4}, {"n_kv_heads": 4, "ccgqa": True}):
        config = dataclasses.replace(plain, **fields)
        give_back_memory()
        model = HYDRA.materialise(config, "cuda", torch.bfloat16)
        tokens_BS = tokens(8, 1024)
        for _ in range(2):  # what the first step holds while kernels are tuned is not meant
            model.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            model.loss(tokens_BS, tokens_BS).backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        step = {"workload": "train", "batch": 8, "sequence": 1024, "precision": "half"}
        estimated.append(HYDRA.footprint(config, **step).together)
        del model
    print(f"training step: MiB {[round(peak / 2**20) for peak in peaks]}")
    assert peaks == pytest.approx(estimated, rel=0.1)
    # Compressed, they are fewer still, but the convolution and the means keep their inputs.
    assert peaks[1] < peaks[0]
