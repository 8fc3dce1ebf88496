"""Choose each head's rank from the entropy of its attention, instead of the full width."""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("adaptive_rank", "Adaptive rank", __doc__)
