"""The number of diffusion steps, in which retrieved values spread over the memory's graph.

This changes the model: fewer steps are less work and reach fewer slots. (arXiv 1810.05997.)

Counted for MAHIA-X base, 64 samples of 256 tokens: eight steps instead of one are less than 0.001 %
of the FLOPs, so only their kernel launches can cost time.
"""

from workbench.runner.toggles._field_toggle import field_toggle

_STEPS = {str(n): (f"{n} step" + "s" * (n > 1), n) for n in (1, 2, 4, 8)}

TOGGLE = field_toggle("diffusion_steps", "Graph diffusion", __doc__, _STEPS)
