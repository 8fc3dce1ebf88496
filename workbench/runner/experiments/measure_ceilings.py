"""A run that measures the device's ceilings, or reports the stored ones."""

from __future__ import annotations

from workbench import protocol
from workbench.runner.context import RunnerContext


class CeilingsRun:
    """A run that reports the ceilings."""

    def __init__(self, context: RunnerContext, command: protocol.MeasureCeilings) -> None:
        self._context = context
        self._command = command
        self.steps = 0

    def execute(self) -> None:
        """Measure, or report the stored ceilings."""
        roof = self._context.roof
        if self._command.anew or roof.measured is None:
            roof.measure()
        else:
            roof.at_start()
