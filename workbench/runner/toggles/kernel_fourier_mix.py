"""The filter along the sequence: by FFT, as PyTorch has it, or as products with its matrix.

Products are faster for short sequences, where an FFT is mostly launches; *Automatic* knows where
that ends.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("fourier_mix", "Fourier mixing by", __doc__)
