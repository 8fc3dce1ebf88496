"""The hybrid on a GPU: nothing waits for the host, every step can be captured, Triton is right."""

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

import kernels
from models import FAMILIES, generate

MAMBA2 = FAMILIES["mamba2"]
TINY = dataclasses.replace(MAMBA2.presets["tiny"], n_layers=2)
LENGTH = 96

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


HALVES = [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)]


@pytest.fixture(params=HALVES, ids=["bfloat16-apart", "bfloat16-fused", "float16-fused"])
def half_model(request):
    dtype, fused = request.param
    model = MAMBA2.materialise(TINY, "cuda", dtype, seed=3)
    model.set_fused_add_norm(fused)
    return model


@pytest.mark.parametrize("attention_every", [0, 2])
def test_single_precision_by_triton_equals_torch_on_the_cpu(attention_every):
    config = dataclasses.replace(TINY, attention_every=attention_every)
    results = []
    for device in ("cpu", "cuda"):
        model = MAMBA2.materialise(config, device, seed=9)
        kernels.reset_usage()
        tokens_BS = tokens(2, 150).to(device)
        model.loss(tokens_BS, tokens_BS).backward()
        with torch.no_grad():
            logits = model(tokens_BS)
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    used = kernels.usage()
    for name in ("causal_conv1d", "ssd_scan", "gated_rms_norm", "rms_norm"):
        assert set(used[name]) == {"triton"}
    for first, other in zip(*results, strict=True):
        error = (other.cpu() - first).norm() / first.norm()
        assert error < 1e-3


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("amp", [True, False])
def test_no_step_waits_for_the_host(checkpointing, amp):
    model = MAMBA2.materialise(TINY, "cuda", torch.float32 if amp else torch.bfloat16, seed=3)
    model.set_checkpointing(checkpointing)
    tokens_BS, position = tokens(2, LENGTH), torch.tensor(7, device="cuda")
    autocast = torch.autocast("cuda", torch.bfloat16, enabled=amp)
    with autocast:
        cache = model.new_cache(2, LENGTH)

    def work():
        with autocast:
            loss = model.loss(tokens_BS, tokens_BS)
        loss.backward()
        with torch.no_grad(), autocast:
            model(tokens_BS, cache=cache, last_only=True)
            model(tokens_BS[:, :8], cache=cache, position=position)
            model(tokens_BS[:, :1], cache=cache, position=position)
        return loss.detach()

    loss = without_waiting(work)
    assert loss.isfinite() and loss.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_training_step_can_be_captured(half_model, checkpointing):
    half_model.set_checkpointing(checkpointing)
    assert_replay_is_eager(half_model, LENGTH, 0.02, 1e-3, "ssm_share")


def test_one_captured_decode_step_serves_every_position(half_model):
    for decoded_BV, whole_BV in decoded_by_one_graph(half_model, tokens(2, LENGTH)):
        torch.testing.assert_close(decoded_BV, whole_BV, rtol=0.05, atol=0.05)


def test_a_compiled_decode_step_is_captured_once_the_cache_is_marked_static():
    model = MAMBA2.materialise(TINY, "cuda", torch.bfloat16, seed=3)
    assert_compiled_decode_step_is_captured(model, LENGTH)


def test_generation_never_waits_and_a_seed_decides_it():
    model = MAMBA2.materialise(TINY, "cuda", torch.bfloat16, seed=3)
    prompt_BS = tokens(2, 40)

    def work(seed=4):
        generator = torch.Generator("cuda").manual_seed(seed)
        stream = generate(
            model, prompt_BS, new_tokens=8, temperature=5.0, top_p=0.9, generator=generator,
            chunk=16,
        )  # fmt: skip
        return torch.stack(list(stream), 1)

    first = without_waiting(work)
    assert torch.equal(first, work()) and not torch.equal(first, work(seed=5))


@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_peak_of_a_training_step_is_as_estimated(precision, checkpointing):
    config, batch, sequence = MAMBA2.presets["96M"], 4, 1024
    estimate, measured = estimated_and_measured(
        MAMBA2, config, batch, sequence, precision, checkpointing
    )
    assert estimate == pytest.approx(measured, rel=0.1)
