"""What the library knows about the device."""

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


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((6, 1), torch.float32), ((7, 5), torch.float16), ((8, 0), torch.bfloat16)],
)
def test_the_precision_follows_the_generation(capability, expected):
    facts = dataclasses.replace(hardware.of("cpu"), capability=capability)
    assert facts.precision == expected


@pytest.mark.gpu
def test_a_gpu_has_what_its_generation_has():
    facts = hardware.of("cuda")
    assert facts.is_gpu and facts.sm_count > 1 and facts.l2_bytes > 0
    assert facts.shared_bytes >= 48 << 10
    assert facts.fp8 == (facts.capability >= (8, 9))
