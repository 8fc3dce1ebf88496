"""How far what was retrieved from the memory spreads over its graph: steps of diffusion.

Another model: fewer steps are less work, and reach fewer slots. (arXiv 1810.05997.)
"""

from workbench.runner.toggles._field_toggle import field_toggle

_STEPS = {str(n): (f"{n} step" + "s" * (n > 1), n) for n in (1, 2, 4, 8)}

TOGGLE = field_toggle("diffusion_steps", "Graph diffusion", __doc__, _STEPS, held="steps")
