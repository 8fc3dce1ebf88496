"""AdaAttn on a GPU: it adapts inside captured graphs, and nothing ever waits for the host."""

import dataclasses

import pytest
import torch
from on_gpu import (
    assert_replay_is_eager,
    captured,
    decoded_by_one_graph,
    estimated_and_measured,
    tokens,
    training,
    without_waiting,
)

import kernels
from models import FAMILIES
from models.layers.adaptive.adaptation import PATIENCE

ADAATTN = FAMILIES["adaattn"]
LENGTH = 64
CONFIG = dataclasses.replace(ADAATTN.presets["tiny"], n_layers=2, refresh_every=1)
DIM = CONFIG.dim // CONFIG.n_heads

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def concentrated(dtype=torch.bfloat16, **fields):
    """Make a model whose queries and keys lie in few directions, so that ranks fall."""
    model = ADAATTN.materialise(dataclasses.replace(CONFIG, **fields), "cuda", dtype, seed=3)
    with torch.no_grad():
        for block in model.blocks:
            for norm in (block.attention.q_norm, block.attention.k_norm):
                norm.weight.fill_(0.05)
                norm.weight[: DIM // 8] = norm.weight[DIM // 2 : DIM // 2 + DIM // 8] = 2
    return model


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("implementation", ["triton", "torch"])
def test_no_step_waits_for_the_host(checkpointing, implementation):
    model = concentrated()
    tokens_BS, position = tokens(2, LENGTH), torch.tensor(7, device="cuda")
    model.set_checkpointing(checkpointing)
    cache = model.new_cache(2, LENGTH)

    def work():
        model.loss(tokens_BS, tokens_BS).backward()
        with torch.no_grad():
            model(tokens_BS)
            model(tokens_BS, cache=cache, last_only=True)
            model(tokens_BS[:, :1], cache=cache, position=position)

    with kernels.using(adaptive_attention=implementation):
        without_waiting(work)
    assert model.adaptation.step == 8


def test_a_captured_training_step_adapts_while_it_is_replayed():
    model = concentrated()
    work = training(model, tokens(2, LENGTH))  # replays read its tokens
    graph, _ = captured(work)
    model.adaptation.rank_LH.fill_(DIM)
    model.adaptation.rank_calm_LH.zero_()
    ranks = []
    for _ in range(PATIENCE + 1):
        graph.replay()
        ranks.append(model.metrics()["rank"].clone())
    assert ranks[0].eq(DIM).all()
    assert (ranks[-1] < DIM).all()
    assert torch.equal(model.adaptation.rank_LH.float(), ranks[-1])


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_replayed_step_gives_the_gradients_of_an_eager_one(checkpointing):
    model = concentrated()
    model.set_checkpointing(checkpointing)
    model.freeze()
    model.adaptation.rank_LH.fill_(DIM // 2)
    assert_replay_is_eager(model, LENGTH, 0.02, 1e-3)


def test_one_captured_decode_step_serves_every_position():
    model = concentrated()
    tokens_BS = tokens(2, LENGTH)
    with torch.no_grad():
        for _ in range(PATIENCE + 1):
            model(tokens_BS)
    model.freeze()
    assert (model.adaptation.rank_LH < DIM).all()
    for decoded_BV, whole_BV in decoded_by_one_graph(model, tokens_BS):
        torch.testing.assert_close(decoded_BV, whole_BV, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_triton_gives_what_torch_gives_at_every_rank_and_precision(dtype):
    model = concentrated(dtype)
    model.freeze()
    state = model.adaptation
    state.rank_LH.copy_(torch.tensor([[DIM, DIM // 2, DIM // 4, DIM // 4]] * 2))
    state.bits_LH.copy_(torch.tensor([[32, 16, 32, 16]] * 2))
    logits = []
    for implementation in ("torch", "triton"):
        with kernels.using(adaptive_attention=implementation):
            logits.append(model(tokens(2, LENGTH)).float())
    size = logits[0].norm()
    assert (logits[0] - logits[1]).norm() < (2e-3 if dtype == torch.float32 else 0.02) * size


@torch.no_grad()
def test_fp8_runs_where_the_gpu_has_it_and_elsewhere_says_so():
    model = concentrated(allow_fp8=True, default_precision="fp8")
    model.freeze()
    exact = concentrated(adaptive_precision=False)
    expected = exact(tokens(2, LENGTH)).float()
    why = kernels.hardware.needs("FP8", (8, 9))("cuda")
    kernels.reset_usage()
    actual = model(tokens(2, LENGTH)).float()
    assert kernels.usage()["adaptive_attention"] == {("torch" if why else "triton"): 2}
    off = (actual - expected).norm() / expected.norm()
    assert 1e-3 < off < 0.2
    if why:
        with (
            kernels.using(adaptive_attention="triton"),
            pytest.raises(kernels.Unavailable, match="FP8 needs compute capability"),
        ):
            model(tokens(2, LENGTH))


@torch.no_grad()
def test_the_basis_on_the_gpu_is_that_of_the_cpu():
    here, there = concentrated(torch.float32), concentrated(torch.float32).cpu()
    there.adaptation.rebuild_buffers(torch.device("cpu"))
    for _ in range(2):
        here(tokens(2, LENGTH))
        there(tokens(2, LENGTH).cpu())
    on_gpu, on_cpu = here.adaptation.chosen(), there.adaptation.chosen()
    assert torch.equal(on_gpu.rank.cpu(), on_cpu.rank)
    # After a quarter of the columns the spectrum falls steeply.
    actual, expected = on_gpu.basis[..., : DIM // 4].cpu(), on_cpu.basis[..., : DIM // 4]
    torch.testing.assert_close(actual @ actual.mT, expected @ expected.mT, rtol=0, atol=0.02)


@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_peak_of_a_training_step_is_as_estimated(precision, checkpointing):
    config, batch, sequence = ADAATTN.presets["base"], 8, 1024
    estimate, measured = estimated_and_measured(
        ADAATTN, config, batch, sequence, precision, checkpointing
    )
    assert estimate == pytest.approx(measured, rel=0.1)
