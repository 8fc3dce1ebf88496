"""The experts' feed-forward networks as grouped products over tokens sorted by expert.

*PyTorch* takes the best of its own ways for the device, the dtype and the sizes, and the evidence
says which one ran and why no better one: torch's *grouped product* (one kernel in BF16 on Hopper
and data-centre Blackwell; a loop in C++ on a CPU), else *padded blocks* on a GPU or compiled (about
twice the chosen work at most, any dtype), else a *loop over experts* in eager code on a CPU. A way
that is chosen by name runs or is an error. The loop waits for the host, so that no graph and no
compiler takes it. *Every expert (dense)* takes each token through all of them, experts / k times
the work.

On an H200 in BF16, 16,384 tokens to 8 of 64 experts: 3.3 ms by Triton, 6.5 ms by torch's grouped
product and 39 ms dense.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("moe_experts", "MoE experts", __doc__)
