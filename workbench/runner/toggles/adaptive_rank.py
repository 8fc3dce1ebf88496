"""Choose each head's rank from the entropy of its attention, instead of the full width.

Counted: with the least rank at half the columns, a quarter of attention's products is saved at
most, 1.8 % of AdaAttn base's forward pass at 1,024 tokens and 14 % at 16,384. So it pays in long
sequences, with the kernel that leaves columns out.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("adaptive_rank", "Adaptive rank", __doc__)
