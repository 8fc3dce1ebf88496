"""Starts the runner: the wire first, so that nothing that torch prints can reach it."""

from __future__ import annotations

import traceback

from workbench import protocol
from workbench.runner.profiling import provenance
from workbench.runner.wire import Wire


def main() -> int:
    """Serve commands until Quit; the exit code is 0 unless the GPU's context was lost."""
    wire = Wire.take_standard_streams()
    wire.listen()  # before what takes long: a window that goes meanwhile takes us along
    provenance.ask()
    try:
        from workbench.runner.engine import Engine  # after the wire: importing torch may print

        return Engine(wire).serve()
    except Exception as error:  # noqa: BLE001 - whatever an installation lacks must reach a person
        wire.send(
            protocol.Failure(
                kind="died",
                sentence=f"The runner gave up: {type(error).__name__}: {error}",
                fix="`workbench doctor` says what is missing.",
                detail=traceback.format_exc(),
                fatal=True,
            )
        )
        return 1
