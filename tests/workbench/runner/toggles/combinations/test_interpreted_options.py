"""Options beside "Triton kernels, all", which is on by default on GPUs, in Triton's interpreter.

TRITON_INTERPRET must be set before Triton is imported: a child process runs ``compare``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
FIELDS = {
    "input_dim": 32, "hidden_dim": 32, "n_layers": 1, "num_experts": 4, "n_heads": 2,
    "n_kv_heads": 1, "max_sequence": 64,
}  # fmt: skip
CASES = (  # options, and the implementations that must run
    ({}, {"rope": "triton", "rms_norm": "triton", "moe_experts": "triton"}),
    ({"fused_loss": "chunked", "triton_rope": "torch"},
     {"linear_cross_entropy": "chunked", "rope": "torch", "rms_norm": "triton"}),
    ({"fused_loss": "triton_small", "triton_moe_experts": "padded", "checkpointing": "full"},
     {"linear_cross_entropy": "triton_small", "moe_experts": "padded", "moe_gating": "triton"}),
)  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the kernels run on the GPU itself")
def test_options_run_and_are_right_beside_triton_kernels_for_all_operators():
    done = subprocess.run(
        [sys.executable, "-c", "import test_interpreted_options as t; t.compare()"],
        cwd=HERE,
        env=os.environ
        | {
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the same" in done.stdout


def compare():
    """Compare each case with the plain model: kernels, evidence, loss and gradients."""
    from built_arms import configuration, stepped

    from workbench.runner.toggles import all_toggles

    assert all_toggles()["triton"].default_option(torch.device("cpu")) == "on"

    def trained(**toggles):
        requested = configuration("moe", "train", sequence=8, model=FIELDS, toggles=toggles)
        arm = stepped(requested)
        statuses = {item.toggle: item.status for item in arm.find_evidence()}
        weights = torch.cat([p.detach().flatten() for p in arm.model.parameters()])
        with arm.entered():
            loss = arm.model.loss(*arm.batches.inputs, *arm.batches.targets)
        return arm, statuses, loss.detach(), weights

    _, _, expected_loss, expected_weights = trained(triton="off")
    for toggles, expected in CASES:
        arm, statuses, loss, weights = trained(**toggles)
        ran = {operator: list(arm.record.usage[operator]) for operator in expected}
        assert ran == {name: [implementation] for name, implementation in expected.items()}
        requested = {"triton", *toggles}
        assert {name: statuses[name] for name in requested} == dict.fromkeys(requested, "effective")
        torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=1e-5)
    print("the same")
