"""The layers of a state-space model that also have attention: every second, fourth, ... or none.

On an H200, Mamba-2 2.8B, forward, one sequence: 36.7 ms without attention, and 44.8 ms with
attention in every 4th layer, at 2,048 tokens; 1.5 and 5.8 s at 131,072 tokens.
"""

from workbench.runner.toggles._field_toggle import field_toggle

_LAYERS = {"0": ("None", 0)} | {str(n): (f"Every {n}", n) for n in (2, 4, 8)}

TOGGLE = field_toggle("attention_every", "Attention layers", __doc__, _LAYERS)
