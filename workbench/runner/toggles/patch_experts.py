"""Replace the experts of a mixture in your model by the bundled operator.

Experts with stacked weights and SwiGLU are replaced if a small copy of them and the operator agree
in FP64, including gradients. Counted: OLMoE has 16 layers of 64 experts; transformers loops over
them or needs a grouped product.
"""

from workbench.runner.foreign.experts import patch_experts
from workbench.runner.toggles._patch_toggle import patch_toggle

TOGGLE = patch_toggle(
    "patch_experts",
    "moe_experts",
    "Experts",
    __doc__,
    patch_experts,
    modules="experts with stacked weights",
)
