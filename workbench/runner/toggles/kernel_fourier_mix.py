"""The computation of the filter along the sequence: by FFT, or by matrix products.

Matrix products are faster for short sequences, where an FFT mostly consists of kernel launches;
*Automatic* selects by the length. Counted, in FLOPs for each number of the residual stream: 512
with matrix products and 45 with FFT at 256 tokens, 16,384 and 70 at 8,192. Only matrix units can
compensate for that, and only up to some length.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("fourier_mix", "Fourier mixing by", __doc__)
