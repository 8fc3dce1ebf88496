"""Replace the state-space scan of the Mamba-2 in transformers by the bundled operator.

It is replaced if both agree in FP64, including gradients. Counted: without the package mamba_ssm,
transformers computes each of the 48 scans of Mamba-2 780M with about 60 torch operators.
"""

from workbench.runner.foreign.mamba import patch_ssd_scan
from workbench.runner.toggles._patch_toggle import patch_toggle

TOGGLE = patch_toggle(
    "patch_ssd_scan",
    "ssd_scan",
    "State-space scan",
    __doc__,
    patch_ssd_scan,
    modules="scans of Mamba-2",
)
