"""Fixtures of the tests of ranks: the cores that they may use, and the end of their workers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from workbench.runner.distributed import world


@pytest.fixture(scope="module")
def close_ranks() -> Iterator[None]:
    """End the workers with the module."""
    yield
    world.close()


@pytest.fixture
def two_cores(monkeypatch) -> None:
    """Let a machine of any size have two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def many_cores(monkeypatch) -> None:
    """Let a machine of any size have eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
