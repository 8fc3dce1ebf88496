"""Compute attention whose heads differ in rank and precision: fused, or with plain attention.

PyTorch first truncates and rounds queries and keys, and then calls any attention backend; *S x S
matrix* is the definition. Triton reads fewer columns of a head of low rank, which saves time. On an
H200, AdaAttn small, forward, 4 x 2,048 tokens in BF16, with adaptive rank and precision: 1.60 times
as fast as the S x S matrix; plain attention with the best backend is 2.15 times as fast. With
torch.compile, automatic choice uses plain attention, because the compiler fuses the rest.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("adaptive_attention", "Adaptive attention", __doc__)
