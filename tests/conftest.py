"""What the markers ``gpu`` and ``interpreter`` mean: where such a test runs, and why not here."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch finds none"))
        if item.get_closest_marker("interpreter") and os.environ.get("TRITON_INTERPRET") != "1":
            reason = "runs in the child process of test_interpreted_kernels.py"
            item.add_marker(pytest.mark.skip(reason=reason))


def _has_gpu() -> bool:
    import torch  # here, so that tests of the window need not import it

    return torch.cuda.is_available()
