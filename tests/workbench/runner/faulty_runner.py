"""The real runner, with families of the tests imported when it imports its own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))  # where it is not installed, as on a GPU host

from workbench.runner.main import main
from workbench.runner.wire import Wire

from_standard_streams = Wire.from_standard_streams


def open_and_import() -> Wire:
    wire = from_standard_streams()
    import faulty_families  # noqa: F401
    import measuring_family

    import models

    models.FAMILIES["measuring"] = measuring_family.FAMILY

    return wire


Wire.from_standard_streams = open_and_import

if __name__ == "__main__":
    raise SystemExit(main())
