"""The mixture of experts for vectors, its stack of switches, and inference by a captured graph."""

import copy
import dataclasses
import io

import pytest
import torch
from torch._subclasses import FakeTensorMode

from models import ConfigurationError
from models.moe import (
    CUDAGraphInference,
    FullyOptimizedMoESystem,
    MixtureOfExpertsSystem,
    MoEConfig,
)

CONFIG = MoEConfig(
    input_dim=16, hidden_dim=12, output_dim=6, num_experts=4, top_k=2, n_layers=2, n_heads=2,
    n_kv_heads=1, max_sequence=32,
)  # fmt: skip


@pytest.fixture
def x_BTI():
    return torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def target_BTO():
    return torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(1))


def system(config=CONFIG, kind=MixtureOfExpertsSystem, **switches):
    torch.manual_seed(4)
    return kind(config, **switches)


def test_the_documents_sizes_map_a_sequence_to_another_width():
    config = MoEConfig(input_dim=512, hidden_dim=2048, output_dim=512, num_experts=32, top_k=3)
    with FakeTensorMode(), torch.device("meta"):
        assert MixtureOfExpertsSystem(config)
    assert system()(torch.randn(2, 5, 16)).shape == (2, 5, 6)
    assert system(dataclasses.replace(CONFIG, output_dim=0))(torch.randn(2, 5, 16)).shape[-1] == 16


def test_it_is_the_language_models_blocks_norm_and_projection(x_BTI):
    model = system()
    x, total = x_BTI, 0
    for block in model.blocks:
        x, loss, _ = block(x)
        total = total + loss
    y, auxiliary = model.forward_with_loss(x_BTI)
    assert torch.equal(y, model.out(model.norm(x)))
    assert torch.equal(auxiliary, total)
    assert auxiliary.item() == pytest.approx(2 * CONFIG.load_balance_weight, rel=0.1)
    assert torch.equal(model(x_BTI), y)
    assert model.metrics()["expert_load"].sum(1).tolist() == pytest.approx([1, 1])


def test_a_seed_gives_the_same_weights_and_no_two_start_alike():
    first, second = system(), system()
    for item, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(item, other)
    torch.manual_seed(5)
    assert not torch.equal(first.out.weight, MixtureOfExpertsSystem(CONFIG).out.weight)
    drawn = [w.flatten()[:8].tolist() for n, w in first.named_parameters() if "norm" not in n]
    assert len({tuple(w) for w in drawn}) == len(drawn)


def test_its_training_learns_with_every_form_of_gating(x_BTI, target_BTO):
    for gating in ("topk", "noisy_topk", "dense"):
        model = system(dataclasses.replace(CONFIG, gating=gating))
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        losses = []
        for _ in range(40):
            optimizer.zero_grad()
            loss = model.loss(x_BTI, target_BTO)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0], gating


def test_what_cannot_be_built_is_refused_before_anything_is_allocated():
    for fields, sentence in (
        ({"top_k": 5}, "moe: top_k = 5 is more than num_experts = 4"),
        ({"hidden_dim": -3}, "moe: hidden_dim = -3 is outside"),
        ({"num_experts": 512, "hidden_dim": 262144, "top_k": 600}, "moe: top_k = 600"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            MixtureOfExpertsSystem(dataclasses.replace(CONFIG, **fields))


@pytest.mark.parametrize(
    ("switches", "sentence"),
    [
        ({"compile_mode": "fast"}, r"unknown compile_mode 'fast'; expected one of \('default'"),
        ({"amp_dtype": torch.float64}, r"amp_dtype torch.float64 is not one of"),
        (
            {"use_compile": True, "use_cuda_graph": True, "compile_mode": "max-autotune"},
            "'max-autotune' captures its own CUDA graphs",
        ),
    ],
)
def test_switches_that_are_not_allowed_are_refused(switches, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        FullyOptimizedMoESystem(CONFIG, **switches)


@pytest.mark.parametrize("shape", [(0, 5, 16), (2, 0, 16), (2, 5, 17), (2, 16)])
def test_inputs_of_another_shape_or_none_are_refused_by_a_sentence(shape):
    with pytest.raises(ConfigurationError, match=r"moe: expected \(B, T, 16\) .*, got \("):
        system()(torch.zeros(shape))


def optimized(**switches):
    return system(kind=FullyOptimizedMoESystem, **switches)


def test_with_all_switches_off_it_is_the_system_itself(x_BTI):
    model = optimized()
    with pytest.raises(ConfigurationError, match="known only after a call"):
        model.effects()
    assert torch.equal(model(x_BTI), system()(x_BTI))
    assert set(model.effects().values()) == {"off"}
    assert model(x_BTI).requires_grad and not model.eval()(x_BTI).requires_grad


def test_each_switch_tells_what_it_did(x_BTI):
    model = optimized(use_amp=True, use_gradient_checkpointing=True, use_cuda_graph=True)
    model(x_BTI)
    result = model.effects()
    assert result["amp"] == "effective: linears compute in torch.bfloat16"
    assert result["gradient_checkpointing"].startswith("effective: 2 blocks")
    assert result["cuda_graph"] == "no effect: training steps are not captured"
    assert result["compile"] == "off"
    model.eval()(x_BTI)
    result = model.effects()
    assert result["gradient_checkpointing"].startswith("no effect: evaluation saves nothing")
    assert result["cuda_graph"] == "no effect: needs a CUDA GPU, but the input is on cpu"
    double = optimized(use_amp=True).double()  # which autocast leaves alone
    double(x_BTI.double())
    assert double.effects()["amp"] == "no effect: linears compute in torch.float64"


def test_compiled_it_gives_the_same_and_counts_its_graphs(x_BTI):
    torch.compiler.reset()
    model = optimized(use_compile=True, compile_backend="aot_eager").eval()
    torch.testing.assert_close(model(x_BTI), system().eval()(x_BTI))
    assert model.effects()["compile"] == "effective: 1 graph compiled so far"
    with torch.compiler.set_stance("force_eager"):
        again = optimized(use_compile=True, compile_backend="aot_eager").eval()
        again(x_BTI)
    assert again.effects()["compile"] == "no effect: nothing was compiled"
    torch.compiler.reset()


@pytest.mark.parametrize("saved", [False, True])
def test_a_copy_that_was_compiled_computes_with_its_own_weights(x_BTI, saved):
    torch.compiler.reset()
    model = optimized(use_compile=True, compile_backend="eager").eval()
    before = model(x_BTI.clone().requires_grad_().exp())
    if saved:
        torch.save(model, file := io.BytesIO())
        other = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    else:
        other = copy.deepcopy(model)
    assert torch.equal(other(x_BTI.exp()), before)
    with torch.no_grad():
        other.moe.out.weight.zero_()
    assert not other(x_BTI.exp()).any() and torch.equal(model(x_BTI.exp()), before)
    torch.compiler.reset()


def test_graphs_captured_before_a_cast_or_in_what_was_copied_are_not_replayed():
    model = optimized(use_cuda_graph=True)
    model._graphs["a shape"] = torch.Generator()  # which cannot be copied either
    assert not copy.deepcopy(model)._graphs and model._graphs
    assert not model.double()._graphs


@pytest.mark.parametrize("amp_dtype", [torch.bfloat16, torch.float16])
def test_a_training_step_learns_under_amp(x_BTI, target_BTO, amp_dtype):
    model = optimized(use_amp=True, amp_dtype=amp_dtype, use_gradient_checkpointing=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = [model.training_step(x_BTI, target_BTO, optimizer).item() for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]


def test_the_scaler_of_half_precision_skips_a_step_that_overflows(x_BTI, target_BTO):
    model = optimized(use_amp=True, amp_dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.training_step(x_BTI, target_BTO, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    model.training_step(x_BTI, target_BTO * float("inf"), optimizer)
    for first, other in zip(before, model.parameters(), strict=True):
        assert torch.equal(first, other)


def test_without_a_gpu_a_capture_is_refused_by_a_sentence(x_BTI):
    with pytest.raises(ConfigurationError, match="needs inputs on a CUDA GPU, but they are on cpu"):
        CUDAGraphInference(system(), [x_BTI])
    with pytest.raises(ConfigurationError, match="but there are none"):
        CUDAGraphInference(system(), [])
