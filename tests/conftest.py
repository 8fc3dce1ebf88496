"""What the marker ``gpu`` means: where such a test runs, and why not here."""

import os

import pytest

# Tests run two at a time on two cores: OpenMP threads that spin at barriers would wait for cores
# that the other test's threads keep, for many times as long as one thread takes.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch finds none"))


def _has_gpu() -> bool:
    import torch  # here, so that tests of the window need not import it

    return torch.cuda.is_available()
