"""Mix attention with a branch that filters the sequence's frequencies, by a learned gate."""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("use_fourier", "Fourier mixing", __doc__)
