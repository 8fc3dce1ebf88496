"""Calls beside the steps, for which nothing is compiled."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Compile nothing inside, and run nothing compiled, if a compiler is loaded at all."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
