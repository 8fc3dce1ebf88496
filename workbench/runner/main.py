"""Starts the runner: the wire first, so that nothing that torch prints can reach it."""

from __future__ import annotations

import atexit
import gc
import os
import traceback
import uuid
from typing import TYPE_CHECKING

from workbench import descendants, protocol
from workbench.runner.profiling import provenance
from workbench.runner.wire import Wire

if TYPE_CHECKING:
    from workbench.runner.engine import Engine

WITHOUT_TORCH = "Install PyTorch: pip install 'gpu-optimization-workbench[torch]'."


def main() -> int:
    """Serve commands until Quit; the exit code is 0 unless the GPU's context was lost."""
    descendants.adopt_orphans()
    atexit.register(descendants.kill_descendants)  # first, and so called last
    os.environ.setdefault(descendants.VARIABLE, uuid.uuid4().hex)
    wire = Wire.from_standard_streams()
    wire.listen()  # before slow imports: if the window ends meanwhile, this process ends too
    provenance.ask()
    try:
        return _engine()(wire).serve()
    except Exception as error:  # noqa: BLE001 - whatever an installation lacks must reach a person
        lacks_torch = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        wire.send(
            protocol.Failure(
                kind="died",
                sentence=f"The runner gave up: {type(error).__name__}: {error}",
                fix=WITHOUT_TORCH if lacks_torch else "`workbench doctor` says what is missing.",
                detail=traceback.format_exc(),
                fatal=True,
            )
        )
        return 1
    finally:
        gc.unfreeze()  # otherwise extensions report false leaks at exit


def _engine() -> type[Engine]:
    """Import the engine after the wire: importing torch may print.

    It makes some 200,000 objects that stay: none is garbage, to be looked for now or in a run.
    """
    gc.disable()
    try:
        from workbench.runner.engine import Engine
    finally:
        gc.enable()
    gc.freeze()
    return Engine
