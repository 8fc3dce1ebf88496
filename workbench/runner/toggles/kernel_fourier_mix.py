"""The filter along the sequence: by FFT, as PyTorch has it, or as products with its matrix.

Products are faster for short sequences, where an FFT is mostly launches; *Automatic* knows where
that ends. Counted, in FLOPs for each number of the stream: 512 by products and 45 by FFT at 256
tokens, 16,384 and 70 at 8,192. Only matrix units can make up for that, and not at any length.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("fourier_mix", "Fourier mixing by", __doc__)
