"""Mixture-of-experts model with torch and with Triton's kernels, in Triton's interpreter.

TRITON_INTERPRET must be set before Triton is imported, so the test has its own process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hang_limit import HANG_S

from kernels.core.triton_helpers import INSTALLED

CHILD = """
import dataclasses, torch, kernels
from models import FAMILIES

moe = FAMILIES["moe"]
config = dataclasses.replace(
    moe.presets["tiny"], input_dim=16, hidden_dim=8, n_layers=1, num_experts=3,
    gating="noisy_topk", capacity_factor=0.75, num_shared_experts=1,
)
model = moe.materialise(config, seed=2)
with torch.no_grad():
    for block in model.blocks:
        block.mixture.router.weight.mul_(20)  # no choice that rounding could turn
tokens = torch.randint(0, 256, (1, 7), generator=torch.Generator().manual_seed(1))
results = {}
for impl in ("torch", "triton"):
    torch.manual_seed(6)
    model.zero_grad()
    kernels.reset_usage()
    with kernels.using(all=impl, attention="manual"):
        loss = model.loss(tokens, tokens)
        loss.backward()
    used = kernels.usage()
    assert set(used["moe_gating"]) == {impl}, used
    assert set(used["moe_experts"]) == {"grouped" if impl == "torch" else impl}, used
    results[impl] = [loss.detach(), *(p.grad.clone() for p in model.parameters())]
for first, other in zip(*results.values(), strict=True):
    torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-6)
model.eval()
workspace, outputs = kernels.Workspace(), []
with torch.no_grad(), kernels.using(all="triton", attention="manual"):
    for given in (None, workspace, workspace):
        model.blocks[0].mixture.workspace = given
        outputs.append(model(tokens))
assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])
# The order, hidden states, rows and outputs of one layer of experts, allocated once, used twice.
assert (workspace.allocations, workspace.requests) == (4, 8), vars(workspace)
print("agree", len(results["torch"]))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the kernels run on the GPU itself")
@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
def test_torch_and_triton_agree_on_a_model_and_its_gradients():
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("agree")
