"""One step of the selective scan, for decoding: the state is read and written once."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("ssd_step", "SSD step", __doc__)
