"""MAHIA-X on a GPU: no step waits for the host, each can be captured, saved depth is time."""

import pytest
import torch
from on_gpu import (
    captured,
    estimated_and_measured,
    replay_ms,
    without_waiting,
)

import kernels
from models import FAMILIES
from models.mahia import DynamicNeuroFabric, GraphDiffusionMemory, MetaAttentionKernel

MAHIA = FAMILIES["mahia"]
PATHS = {
    "standard": {"all": "torch", "fourier_mix": "torch"},
    "fused": {"all": "triton", "fourier_mix": "matmul"},
}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def batch(config, size, seed=0):
    inputs, targets = MAHIA.draw(
        config, size, config.text_seq_len, torch.Generator().manual_seed(seed)
    )
    return [tensor.cuda() for tensor in (*inputs, *targets)]


def configured(**fields):
    return MAHIA.configure("tiny", {"max_layers": 3, **fields})


@pytest.mark.parametrize("use_moe", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_single_precision_equals_the_cpu(use_moe, path):
    config = configured(use_moe=use_moe, capacity=1.0)
    here, there = (MAHIA.materialise(config, device, seed=9) for device in ("cuda", "cpu"))
    inputs = batch(config, 4)
    with kernels.using(**PATHS[path]):
        loss = here.loss(*inputs)
        loss.backward()
    expected = there.loss(*(tensor.cpu() for tensor in inputs))
    expected.backward()
    torch.testing.assert_close(loss.cpu(), expected, rtol=1e-4, atol=1e-5)
    for actual, other in zip(here.parameters(), there.parameters(), strict=True):
        error = (actual.grad.cpu() - other.grad).norm()
        assert error < 0.01 * other.grad.norm() + 1e-6


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (MetaAttentionKernel, (4, 128, 256)),
        (GraphDiffusionMemory, (64, 256)),
        (DynamicNeuroFabric, (64, 256)),
        (DynamicNeuroFabric, (4, 128, 256)),
    ],
)
def test_fused_and_standard_paths_agree(kind, shape):
    torch.manual_seed(0)
    module = kind(256).cuda()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).cuda().requires_grad_()
    result = []
    for choices in (kind.STANDARD, kind.FUSED):
        kernels.reset_usage()
        with kernels.using(**choices):
            y = module(x)
        used = kernels.usage()
        assert all(list(used[operator]) == [choices[operator]] for operator in choices)
        result.append((y, *torch.autograd.grad(y.square().sum(), x)))
    for first, other in zip(*result, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("use_moe", [False, True])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("path", PATHS)
def test_no_step_waits_for_the_host(use_moe, checkpointing, path):
    config = configured(use_moe=use_moe, memory_top_k=4)
    model = MAHIA.materialise(config, "cuda", torch.bfloat16, seed=3)
    model.set_checkpointing(checkpointing)
    tokens_BS, tabular_BF, targets_B = batch(config, 8)

    def work():
        model.loss(tokens_BS, tabular_BF, targets_B).backward()
        with torch.no_grad():
            model.memory.update(model.query(tokens_BS, tabular_BF))

    with kernels.using(**PATHS[path]):
        without_waiting(work)


@pytest.mark.parametrize("use_moe", [False, True])
@pytest.mark.parametrize("amp", [False, True])
def test_a_training_step_can_be_captured(use_moe, amp):
    # At full capacity: below it, rounding may let another sample win a place.
    config = configured(use_moe=use_moe, capacity=1.0)
    model = MAHIA.materialise(config, "cuda", seed=3)
    inputs = batch(config, 8)

    def work():
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            loss = model.loss(*inputs)
        loss.backward()
        return loss.detach()

    graph, loss = captured(work)
    for tensor, other in zip(inputs, batch(config, 8, seed=1), strict=True):
        tensor.copy_(other)
    graph.replay()
    replayed = [loss.clone(), *(parameter.grad.clone() for parameter in model.parameters())]
    measured = {name: values.clone() for name, values in model.metrics().items()}
    expected = [work(), *(parameter.grad for parameter in model.parameters())]
    for actual, other in zip(replayed, expected, strict=True):
        torch.testing.assert_close(actual, other, rtol=0.02, atol=1e-3)
    for name, values in model.metrics().items():
        torch.testing.assert_close(values, measured[name], rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("use_moe", [False, True])
def test_autocast_stays_close_to_single_precision(use_moe, dtype):
    config = configured(use_moe=use_moe, capacity=1.0)
    model = MAHIA.materialise(config, "cuda", seed=3)
    inputs = batch(config, 16)[:2]
    with torch.no_grad():
        expected = model(*inputs)
        for path, choices in PATHS.items():
            with kernels.using(**choices), torch.autocast("cuda", dtype):
                outputs = model(*inputs)
            assert outputs.dtype == dtype
            assert (outputs.float() - expected).norm() < 0.05 * expected.norm(), path


@torch.no_grad()
def test_depth_that_is_saved_is_time_that_is_saved():
    x = torch.randn(16384, 2048, device="cuda", dtype=torch.bfloat16)
    times = {}
    for capacity in (0.125, 0.5, 1.0):
        module = DynamicNeuroFabric(2048, 4, capacity=capacity).to("cuda", torch.bfloat16)
        times[capacity] = replay_ms(lambda module=module: module(x))
    # The routing of all samples is paid at any capacity; the layers' products fall with it.
    assert times[0.5] < 0.7 * times[1.0], times
    assert times[0.125] < 0.45 * times[1.0], times


def test_a_compiled_forward_pass_gives_the_same():
    torch.compiler.reset()
    config = configured(capacity=1.0)
    model = MAHIA.materialise(config, "cuda", seed=3)
    inputs = batch(config, 4)[:2]
    with torch.no_grad():
        compiled = model.enable_torch_compile("reduce-overhead", batch=4)
        skips = torch._dynamo.utils.counters["inductor"]
        skips.clear()
        for _ in range(3):
            outputs = compiled(*inputs).clone()
        assert skips["cudagraph_skips"] == 0
        torch.testing.assert_close(outputs, model(*inputs), rtol=1e-2, atol=1e-3)
    torch.compiler.reset()


@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_peak_of_a_training_step_is_as_estimated(precision, checkpointing):
    config, size = MAHIA.presets["base"], 64
    estimate, measured = estimated_and_measured(
        MAHIA,
        config,
        size,
        config.text_seq_len,
        precision,
        checkpointing,
        lambda: batch(config, size),
    )
    assert estimate == pytest.approx(measured, rel=0.1)
