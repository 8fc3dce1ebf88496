"""Memory of HYDRA with its options, alone and together, estimated and counted."""

import pytest
from peak_bytes import estimate_and_peak

from models import FAMILIES

HYDRA = FAMILIES["hydra"]
CCGQA = {"ccgqa": True, "n_layers": 3}
DEPTHS = {"mixture_of_depths": True, "depth_every": 1, "depth_capacity": 0.5, "n_layers": 3}
RECURSIONS = {"mixture_of_recursions": True, "n_layers": 2}
ALL = CCGQA | DEPTHS | RECURSIONS
STEP = {"batch": 8, "sequence": 256}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fields", "precision", "fused", "checkpointing"),
    [
        (ALL, "half", False, "none"),
        pytest.param(ALL, "amp", False, "full", marks=pytest.mark.slow),
        pytest.param(ALL, "half", True, "none", marks=pytest.mark.slow),
        pytest.param(CCGQA, "amp", True, "none", marks=pytest.mark.slow),
        (CCGQA, "half", False, "none"),
        (DEPTHS, "half", False, "none"),
        pytest.param(DEPTHS, "fp32", True, "none", marks=pytest.mark.slow),
        pytest.param(RECURSIONS, "half", False, "none", marks=pytest.mark.slow),
        (RECURSIONS | {"recursion_routing": "token"}, "half", True, "none"),
    ],
)
def test_a_training_step_that_routes_is_estimated_within_a_twentieth(
    fields, precision, fused, checkpointing
):
    step = STEP | {"precision": precision, "fused": fused, "checkpointing": checkpointing}
    estimate, peak = estimate_and_peak(HYDRA, HYDRA.configure("tiny", fields), **step)
    assert estimate == pytest.approx(peak, rel=0.05)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fields", "workload", "precision", "fused", "attention"),
    [
        (ALL, "forward", "half", False, ""),
        (DEPTHS, "prefill", "fp32", True, ""),
        (RECURSIONS, "forward", "half", True, ""),
        (RECURSIONS | {"recursion_kv": "share"}, "prefill", "half", True, "manual"),
        (RECURSIONS | {"recursion_routing": "token"}, "forward", "fp32", False, ""),
    ],
)
def test_inference_that_routes_is_estimated_within_a_twentieth(
    fields, workload, precision, fused, attention
):
    step = STEP | {"precision": precision, "fused": fused, "attention": attention}
    estimate, peak = estimate_and_peak(HYDRA, HYDRA.configure("tiny", fields), workload, **step)
    assert estimate == pytest.approx(peak, rel=0.05)
