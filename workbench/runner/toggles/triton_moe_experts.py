"""The experts' feed-forward networks as grouped products over tokens sorted by expert.

PyTorch runs every token through every expert, with a weight that is mostly zero: no loop and no
wait for the host, but experts / k times the work. Triton multiplies the chosen only. On
an H200 in BF16, 16,384 tokens to 8 of 64 experts: 3.3 ms, and 39 ms by PyTorch.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("moe_experts", "MoE experts", __doc__)
