"""The file that Python runs first in every process of a recorded training script.

The folder of this file is on ``PYTHONPATH`` of such a process. It loads ``workbench.instrument``
under a private name, because the script may have a module ``workbench`` of its own, and then runs
the ``sitecustomize`` that it hides, if there is one.
"""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes 3 ms
_NAME = "_workbench_instrument"


def _load():
    folder = os.path.dirname(_HERE)  # noqa: PTH120
    spec = importlib.util.spec_from_file_location(
        _NAME,
        os.path.join(folder, "__init__.py"),  # noqa: PTH118
        submodule_search_locations=[folder],
    )
    if spec is None or spec.loader is None:
        raise ImportError(folder)
    package = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)
    return package


def _run_hidden():
    """Run the next ``sitecustomize`` on the path: that of the distribution or environment."""
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if own is not None:
            sys.modules["sitecustomize"] = own
        if error.name != "sitecustomize":
            raise


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]  # noqa: PTH100
try:
    _load().start()
except Exception as failure:  # noqa: BLE001 - the script runs on, without a recording
    sys.stderr.write(f"workbench: the script is not recorded: {failure!r}\n")
_run_hidden()
