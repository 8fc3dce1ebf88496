"""Every how many layers of a state-space model one also has attention; 0 is none at all.

On an H200, Mamba-2 2.8B, forward, one sequence: without attention 36.7 ms instead of 44.8 with it
in every 4th layer at 2,048 tokens, and 1.5 instead of 5.8 s at 131,072.
"""

from workbench.runner.toggles._field_toggle import field_toggle

_LAYERS = {"0": ("None", 0)} | {str(n): (f"Every {n}", n) for n in (2, 4, 8)}

TOGGLE = field_toggle("attention_every", "Attention layers", __doc__, _LAYERS)
