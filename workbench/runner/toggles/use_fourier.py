"""Mix attention with a branch that filters the sequence's frequencies, by a learned gate.

Another model: counted for MAHIA-X base, 64 samples of 256 tokens, the branch adds 0.1 % of the
forward pass's FLOPs.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("use_fourier", "Fourier mixing", __doc__)
