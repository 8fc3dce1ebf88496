"""8-bit matrix units are measured by right products if they exist; otherwise there is a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import hardware
from kernels.core.operator import Work
from kernels.measure import eight_bit, timing
from kernels.quantized_matmul import OP, SCHEMES


@pytest.fixture(autouse=True)
def measured_anew():
    eight_bit.measured.cache_clear()
    yield
    eight_bit.measured.cache_clear()


def test_the_int8_product_that_is_timed_is_the_product_of_its_codes(monkeypatch):
    torch.manual_seed(0)
    made = []
    monkeypatch.setattr(eight_bit, "_codes", spied(eight_bit._codes, made))
    product = eight_bit.UNITS["int8"].product(64, "cpu")()
    a, b = made
    assert torch.equal(product, a.int() @ b.int().T) and a.unique().numel() > 100


def spied(function, made):
    def call(*args):
        made.append(function(*args))
        return made[-1]

    return call


def test_the_cpu_has_a_measured_int8_rate_and_for_float8_a_reason():
    rate = eight_bit.measured("int8", "cpu")
    assert isinstance(rate, float) and 1e7 < rate < 1e15
    assert eight_bit.measured("int8", "cpu") == rate  # once
    assert "needs a CUDA GPU" in eight_bit.measured("float8", "cpu")


def test_a_product_that_fails_is_a_reason_and_no_rate(monkeypatch):
    def fails(side, device):
        raise RuntimeError("not supported\nsecond line")

    broken = replace(eight_bit.UNITS["int8"], product=fails)
    monkeypatch.setitem(eight_bit.UNITS, "int8", broken)
    assert eight_bit.measured("int8", "cpu") == "torch's product failed: not supported"


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 0), {}),
        ((8, 0), {"int8_dynamic": "int8"}),
        ((9, 0), {"int8_dynamic": "int8", "fp8_tensor": "float8", "fp8_row": "float8"}),
    ],
)
def test_schemes_multiply_in_the_units_that_their_gpu_has(capability, expected):
    with hardware.imagined(capability):
        actual = {scheme: eight_bit.unit_of(scheme, "cuda") for scheme in SCHEMES}
    assert {scheme: unit for scheme, unit in actual.items() if unit} == expected


def test_the_operators_work_names_the_units_of_its_scheme_and_only_forward():
    cases = {case.name.partition(" ")[2]: case for case in OP.cases if case.bench}
    costs = {
        name: OP.cost(**OP.inputs(replace(case, sizes=case.sizes | {"rows": 2, "k": 16, "n": 16}),
                                  torch.device("cpu"), torch.float32, 0))
        for name, case in cases.items()
    }  # fmt: skip
    units = {name: cost.forward.unit for name, cost in costs.items()}
    assert units == {"fp8 tensor": "float8", "fp8 row": "float8", "int8": "int8", "weight only": ""}
    assert all(cost.backward.unit == "" for cost in costs.values())


def test_the_floor_goes_by_the_8_bit_rate_only_where_one_was_measured(monkeypatch):
    plain = timing.Ceilings(1e12, 1e14, "bfloat16")
    monkeypatch.setattr(eight_bit, "ceilings", lambda device, dtype: plain)
    rates = {"float8": 2e14, "int8": "there is none"}
    monkeypatch.setattr(eight_bit, "measured", lambda unit, device: rates[unit])
    work = [Work(1, 10**9, unit) for unit in ("float8", "int8", "")]
    ceilings = [eight_bit.ceilings_for(w, "cuda", torch.bfloat16) for w in work]
    assert [c.dtype for c in ceilings] == ["float8", "bfloat16", "bfloat16"]
    assert [c.floor_us(w) for c, w in zip(ceilings, work, strict=True)] == [5.0, 10.0, 10.0]


@pytest.mark.gpu
def test_8_bit_units_of_a_gpu_are_faster_than_bf16_where_it_has_them():
    plain = timing.matrix_rate("cuda", torch.bfloat16)
    for name in eight_bit.UNITS:
        rate = eight_bit.measured(name, "cuda")
        missing = OP.unavailable(eight_bit.UNITS[name].implementation, "cuda")
        assert rate == missing if missing else 1.1 * plain < rate < 8 * plain, (name, rate, plain)
