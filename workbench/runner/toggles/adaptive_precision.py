"""Choose each head's number format from its scores, instead of one for all."""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("adaptive_precision", "Adaptive precision", __doc__)
