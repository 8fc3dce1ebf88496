"""Memory of HYDRA with its options, alone and together, estimated and counted."""

import pytest
from peak_bytes import as_on_an_h200, inference_peak, training_peak

from models import FAMILIES

HYDRA = FAMILIES["hydra"]
CCGQA = {"ccgqa": True, "n_layers": 3}
DEPTHS = {"mixture_of_depths": True, "depth_every": 1, "depth_capacity": 0.5, "n_layers": 3}
RECURSIONS = {"mixture_of_recursions": True, "n_layers": 2}
ALL = CCGQA | DEPTHS | RECURSIONS
STEP = {"batch": 8, "sequence": 256}


def compared(fields, workload, step):
    """Return bytes: the footprint's total, and the counted peak."""
    config = HYDRA.configure("tiny", fields)
    with as_on_an_h200():
        estimate = HYDRA.footprint(config, workload=workload, **step).total
    if workload == "train":
        peak = training_peak(HYDRA, config, **step)
    else:
        peak = inference_peak(HYDRA, config, workload=workload, **step)
    print(fields, workload, step, peak, f"{estimate / peak - 1:+.1%}")
    return estimate, peak


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
    estimate, peak = compared(fields, "train", step)
    assert estimate == pytest.approx(peak, rel=0.05)


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
    estimate, peak = compared(fields, workload, step)
    assert estimate == pytest.approx(peak, rel=0.05)
