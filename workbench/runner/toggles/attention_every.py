"""Every how many layers of a state-space model one also has attention; 0 is none at all."""

from workbench.runner.toggles._field_toggle import field_toggle

_LAYERS = {"0": ("None", 0)} | {str(n): (f"Every {n}", n) for n in (2, 4, 8)}

TOGGLE = field_toggle("attention_every", "Attention layers", __doc__, _LAYERS)
