"""The checks of odd models and of planted faults on a GPU, FP16 and Triton kernels too."""

from __future__ import annotations

import pytest
import test_odd_numerics as odd
import torch

from workbench.runner.numerics import comparison

pytestmark = pytest.mark.gpu
PRECISIONS = ("fp32", "amp_bf16", "bf16", "amp_fp16")
MAKERS = list(dict.fromkeys((make, workload) for make, workload, _ in odd.FAULTS))


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    monkeypatch.setattr(odd, "CPU", torch.device("cuda", 0))


@pytest.mark.parametrize(("name", "precision"), odd.EXPECTED)
def test_odd_models_are_never_wrong_and_a_check_leaves_no_trace(name, precision):
    if (name, precision) == ("sparse_input", "bf16"):
        with pytest.raises(NotImplementedError, match="addmm_sparse_cuda"):  # torch has none
            odd.build(f"{odd.ODD}:{name}", "train", precision=precision)
        return
    result = odd.check(odd.build(f"{odd.ODD}:{name}", "train", precision=precision))
    assert result.ok is not False, result.text


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("make", "workload"), MAKERS)
def test_without_a_fault_nothing_is_wrong(make, workload, precision):
    arm = make(workload, precision, 2 if workload == "train" else 0)
    result = comparison.check(arm, arm.situation)
    assert result.ok is not False, result.text


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("make", "workload", "plant"), odd.FAULTS)
def test_a_planted_fault_is_never_right(make, workload, plant, precision):
    arm = make(workload, precision, 2 if workload == "train" else 0)
    plant(arm)
    result = comparison.check(arm, arm.situation)
    assert result.ok is not True, result.text
