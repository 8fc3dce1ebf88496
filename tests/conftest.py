"""The marker ``gpu``: its meaning, where such a test runs and why not here; and what CI saves."""

import builtins
import collections
import faulthandler
import gc
import os
import random
import tempfile
from collections.abc import Iterable, Iterator

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

# Tests run two at a time on two cores: OpenMP threads that spin at barriers would wait for cores
# that the other test's threads keep, for many times as long as one thread takes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if os.environ.get("CI"):  # the same examples each time, and fewer: by hand there are all
    settings.register_profile("few", settings.get_profile("ci"), max_examples=40)
    settings.load_profile("few")
else:  # a busy machine is no fault of the code
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")


# Tests neither read nor change the journals, the key and the measurements of the user's account.
_STATE = tempfile.TemporaryDirectory(prefix="workbench-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name


_IMPORT = builtins.__import__  # before pytest-qt imports PySide
gc.disable()  # what is imported and collected stays: to look for garbage in it takes seconds


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print the thread that crashed alone: a log may be cut before it.

    PySide replaces ``__import__``, for ``from __feature__ import``, which is not used here. With
    its replacement, steps on fake tensors take 1.3 times as long: torch imports inside functions.
    """
    faulthandler.enable(config.stash[fault_handler_stderr_fd_key], all_threads=False)
    builtins.__import__ = _IMPORT


def pytest_collection_finish() -> None:
    """Keep what was imported and collected: garbage is looked for among what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def what_a_module_leaves_behind_stays() -> Iterator[None]:
    """Keep what a module leaves behind out of later collections.

    Caches of compilers grow to millions of objects: each of hundreds of collections that later
    tests ask for would look through them for a quarter of a second.
    """
    yield
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else extensions complain at the end of what they take for leaks


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in _unsampled(items):
        item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch finds none"))


def _unsampled(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases that the marker ``sample`` leaves to complete runs.

    The sample grows by the case whose values of parameters are rarest in it so far.
    """
    cases: dict[object, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            assert isinstance(item, pytest.Function)
            cases.setdefault((item.path, item.originalname), []).append(item)
    for rest in cases.values():
        (size,) = next(rest[0].iter_markers("sample")).args
        random.Random(0).shuffle(rest)
        used: collections.Counter[int] = collections.Counter()
        for _ in range(min(size, len(rest))):
            rest.sort(key=lambda case: sum(used[id(value)] for value in _values(case)))
            used.update(map(id, _values(rest.pop(0))))
        yield from rest


def _values(case: pytest.Function) -> Iterable[object]:
    return case.callspec.params.values()


def _has_gpu() -> bool:
    import torch  # here, so that tests of the window need not import it

    return torch.cuda.is_available()
