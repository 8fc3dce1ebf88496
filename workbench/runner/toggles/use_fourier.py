"""Mix attention with a branch that filters the frequencies of the sequence; a gate is learned.

This changes the model. Counted for MAHIA-X base, 64 samples of 256 tokens: the branch adds 0.1 % to
the FLOPs of the forward pass.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("use_fourier", "Fourier mixing", __doc__)
