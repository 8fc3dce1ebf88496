"""Mixtures of experts on a GPU: captured, never waiting, in BF16, and as large as estimated."""

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
from models import FAMILIES, ConfigurationError
from models.moe import (
    CUDAGraphInference,
    FullyOptimizedMoESystem,
    MixtureOfExpertsSystem,
    MoEConfig,
)

MOE = FAMILIES["moe"]
LENGTH = 64
FORMS = {
    "topk": {},
    "noisy": {"gating": "noisy_topk", "capacity_factor": 1.0},
    "dense": {"gating": "dense", "num_shared_experts": 1},
}
SYSTEM = MoEConfig(
    input_dim=64, hidden_dim=64, output_dim=32, num_experts=8, top_k=2, n_layers=2, n_heads=4,
    n_kv_heads=2, max_sequence=64,
)  # fmt: skip

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


HALVES = [*((form, torch.bfloat16) for form in FORMS), ("topk", torch.float16)]


@pytest.fixture(params=HALVES, ids=lambda half: f"{half[0]}-{half[1]}")
def half_model(request):
    form, dtype = request.param
    config = dataclasses.replace(MOE.presets["tiny"], n_layers=2, **FORMS[form])
    return MOE.materialise(config, "cuda", dtype, seed=3)


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_no_step_waits_for_the_host(half_model, checkpointing, impl):
    tokens_BS, position = tokens(2, LENGTH), torch.tensor(7, device="cuda")
    half_model.set_checkpointing(checkpointing)
    cache = half_model.new_cache(2, LENGTH)

    def work():
        half_model.loss(tokens_BS, tokens_BS).backward()
        with torch.no_grad():
            half_model(tokens_BS, cache=cache, last_only=True)
            half_model(tokens_BS[:, :1], cache=cache, position=position)

    with kernels.using(moe_gating=impl, moe_experts=impl):
        without_waiting(work)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_dropless_training_step_can_be_captured(checkpointing):
    config = dataclasses.replace(MOE.presets["tiny"], n_layers=2)
    model = MOE.materialise(config, "cuda", seed=3)
    model.set_checkpointing(checkpointing)
    assert_replay_is_eager(model, LENGTH, 1e-3, 1e-5, "expert_load")  # other experts' tokens


def test_each_replay_of_a_noisy_step_draws_new_noise():
    config = dataclasses.replace(MOE.presets["tiny"], n_layers=2, gating="noisy_topk")
    model = MOE.materialise(config, "cuda", seed=3)
    work = training(model, tokens(2, LENGTH))  # replays read its tokens
    graph, loss = captured(work)
    losses = []
    for _ in range(8):
        graph.replay()
        losses.append(loss.item())
    assert len(set(losses)) > 4, "one in two hundred pairs rounds to the same loss, but not all"


def test_one_captured_decode_step_serves_every_position(half_model):
    half_model.eval()
    tokens_BS, different = tokens(2, LENGTH), 0
    for decoded_BV, whole_BV in decoded_by_one_graph(half_model, tokens_BS):
        # Rounding may turn a choice between two experts that are nearly alike: a few tokens.
        near = torch.isclose(decoded_BV, whole_BV, rtol=0.05, atol=0.05)
        different += int((~near.all(-1)).sum())
    assert different <= 0.02 * tokens_BS.numel()


def test_single_precision_equals_the_cpu_with_its_gradients():
    config = MOE.presets["tiny"]
    result = []
    for device in ("cuda", "cpu"):
        model = MOE.materialise(config, device, seed=9)
        with torch.no_grad():
            for block in model.blocks:
                block.mixture.router.weight.mul_(20)
        tokens_BS = tokens(2, 100).to(device)
        loss = model.loss(tokens_BS, tokens_BS)
        loss.backward()
        result.append([loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters())])
    for first, other in zip(*result, strict=True):
        assert (first - other).norm() <= 1e-3 * other.norm()


def test_half_precision_stays_close_to_single_precision(half_model):
    half_model.eval()
    with torch.no_grad():
        half = half_model.loss(tokens(4, LENGTH), tokens(4, LENGTH))
        wide = half_model.float().loss(tokens(4, LENGTH), tokens(4, LENGTH))
    torch.testing.assert_close(half, wide, rtol=0.01, atol=0)


@pytest.mark.parametrize("fields", [{}, {"in_place": True}, {"reuse_buffers": True}])
def test_a_system_replays_what_it_computes_eagerly(fields):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = MixtureOfExpertsSystem(dataclasses.replace(SYSTEM, **fields)).eval()
    example, x = torch.randn(2, 8, 4, 16, 64, device="cuda").flatten(1, 2).unbind()
    inference = CUDAGraphInference(model, [example])
    first = inference(x)
    assert not inference(x.clone().requires_grad_()).requires_grad, "it keeps no inputs"
    with torch.no_grad():
        torch.testing.assert_close(first, model(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(inference(example), model(example), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(first, model(x), rtol=1e-4, atol=1e-5)  # it stayed
    with pytest.raises(ConfigurationError, match=r"captured for float32 \(32, 16, 64\) on cuda:0"):
        inference(x[:3])
    with pytest.raises(ConfigurationError, match="but called with float16"):
        inference(x.half())


def test_a_model_that_waits_cannot_be_captured_and_the_reason_is_given():
    class Waits(torch.nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    with pytest.raises(ConfigurationError, match=r"Waits cannot be captured: .*captur"):
        CUDAGraphInference(Waits(), [torch.ones(3, device="cuda")])
    torch.cuda.synchronize()
    assert torch.ones(3, device="cuda").sum().item() == 3  # the device goes on


def test_all_switches_together_take_effect_and_give_the_systems_result():
    x = torch.randn(2, 16, 64, device="cuda")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = FullyOptimizedMoESystem(
            SYSTEM, use_compile=True, use_amp=True, use_cuda_graph=True,
            use_gradient_checkpointing=True,
        )  # fmt: skip
    model.eval()
    y, again = model(x), model(x)
    assert torch.equal(y, again)
    effects = model.effects()
    assert effects["cuda_graph"] == "effective: 1 graph captured, one for each shape"
    assert effects["compile"].startswith("effective") and effects["amp"].startswith("effective")
    with torch.no_grad():
        torch.testing.assert_close(y.float(), model.moe(x), rtol=0.1, atol=0.1)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    target = torch.randn(2, 16, 32, device="cuda")
    losses = [model.training_step(x, target, optimizer).item() for _ in range(20)]
    assert losses[-1] < losses[0]
    assert model.effects()["gradient_checkpointing"].startswith("effective: 2 blocks")


@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_peak_of_a_training_step_is_as_estimated(precision, checkpointing):
    config, batch, sequence = MOE.presets["base"], 8, 1024
    estimate, measured = estimated_and_measured(
        MOE, config, batch, sequence, precision, checkpointing
    )
    assert estimate == pytest.approx(measured, rel=0.1)
