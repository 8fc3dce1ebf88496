"""Facts that the library knows about the device."""

import dataclasses

import pytest
import torch

from kernels import hardware


def test_facts_of_a_device_are_asked_for_once_and_cannot_be_changed():
    facts = hardware.of("cpu")
    assert facts is hardware.of(torch.device("cpu"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.sm_count = 3


def test_the_cpu_has_cores_and_memory_and_no_matrix_units():
    facts = hardware.of("cpu")
    assert facts.sm_count >= 1 and facts.total_bytes > 1 << 28 and facts.name
    assert not (facts.is_gpu or facts.fp16 or facts.bf16 or facts.tf32 or facts.fp8)
    assert facts.precision == torch.float32


def test_the_budget_is_a_fraction_of_what_is_free():
    half, all_of_it = hardware.budget_bytes("cpu", 0.5), hardware.budget_bytes("cpu", 1.0)
    assert 0 < half < all_of_it <= hardware.of("cpu").total_bytes


def test_a_gpus_budget_has_what_the_allocator_caches_but_no_pool_of_graphs(monkeypatch):
    def segment(device, pool, total, active):
        return {"device": device, "segment_pool_id": pool, "total_size": total,
                "active_size": active}  # fmt: skip

    segments = [segment(0, (0, 0), 100, 30), segment(0, (0, 1), 1000, 0),
                segment(1, (0, 0), 5000, 0)]  # fmt: skip
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 10_000))
    assert hardware.budget_bytes("cuda:0", 1.0) == 77
    assert hardware.budget_bytes("cuda:0", 0.5) == 38


@pytest.mark.gpu
def test_memory_that_a_tensor_has_left_is_free_again():
    tensor = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    free_bytes = hardware.budget_bytes("cuda", 1.0)
    del tensor
    assert hardware.budget_bytes("cuda", 1.0) >= free_bytes + (1 << 30)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((6, 1), torch.float32), ((7, 5), torch.float16), ((8, 0), torch.bfloat16)],
)
def test_the_precision_follows_the_generation(capability, expected):
    facts = dataclasses.replace(hardware.of("cpu"), capability=capability)
    assert facts.precision == expected


@pytest.mark.parametrize(
    ("capability", "config", "mib"),
    [((9, 0), None, 32), ((8, 9), None, 8.125), ((9, 0), ":16:8", 0.125), ((0, 0), ":16:8", 0)],
)
def test_the_workspace_of_matrix_products_is_as_configured(capability, config, mib, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    facts = dataclasses.replace(
        hardware.of("cpu"), capability=capability, device="cuda:0" if any(capability) else "cpu"
    )
    assert facts.workspace_bytes == mib * 2**20


@pytest.mark.gpu
def test_a_product_on_another_stream_takes_a_workspace_of_the_stated_size():
    a = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)
    a @ a
    with torch.cuda.stream(torch.cuda.Stream()):
        before = torch.cuda.memory_allocated()
        product = a @ a
        taken = torch.cuda.memory_allocated() - before - product.nbytes
    assert taken == hardware.of("cuda").workspace_bytes


@pytest.mark.gpu
def test_a_gpu_has_what_its_generation_has():
    facts = hardware.of("cuda")
    assert facts.is_gpu and facts.sm_count > 1 and facts.l2_bytes > 0
    assert facts.shared_bytes >= 48 << 10
    assert facts.fp8 == (facts.capability >= (8, 9))
