"""The measured matrix rate that the linear layers of a step are compared with."""

from __future__ import annotations

from workbench.runner.interfaces import Situation
from workbench.runner.toggles import all_toggles


def matrix_dtype(situation: Situation) -> str:
    """Return the name of the matrix rate of a step's linear layers.

    The last toggle that sets it wins: quantized weights are multiplied in 8 bits in any precision.
    """
    rates = [
        toggle.matrix_rate(situation.option(name), situation)
        for name, toggle in all_toggles().items()
        if toggle.matrix_rate is not None
    ]
    return [rate for rate in rates if rate][-1]
