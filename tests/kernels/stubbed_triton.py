"""Triton with a GPU's part taken out: nothing is compiled and launching does nothing.

What is left is what the host does: Triton's own Python around a launch, and ours around that.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

from kernels import _dispatch, _triton, _tuning


class Driver:
    """A GPU's driver as far as a launch asks it; ``device`` and ``stream`` are the current ones."""

    def __init__(self) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", 90, 32)
        self.device = self.stream = 0
        self.launches: list[tuple[Any, ...]] = []
        self.keeps = True  # what is launched; off while time is taken

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return self.stream


@contextlib.contextmanager
def stubbed() -> Iterator[Driver]:
    """Every launch ends at the driver given, which keeps the arguments, and operators take Triton.

    What Triton would compile is an object of its own for each of Triton's keys. Tiles are kept as
    on a GPU of which nothing is stored.
    """
    from triton.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    stub = Driver()

    def compiled(self, key, signature, device, *_):
        kernel = CompiledKernel.__new__(CompiledKernel)
        kernel.module, kernel._module_pid = object(), None
        kernel.name, kernel.src = self.__name__, None
        kernel.function, kernel.packed_metadata = (self.__name__, device, key), (4, 1, 0)

        def run(*arguments):
            if stub.keeps:
                stub.launches.append(arguments)

        kernel._run = run
        self.device_caches[device][0][key] = kernel
        return kernel

    before = driver._active
    driver.set_active(stub)
    try:
        with (
            mock.patch.object(JITFunction, "_do_compile", compiled),
            mock.patch.object(_triton, "INTERPRETED", True),  # so that Triton takes the CPU's
            mock.patch.object(_tuning, "_gpu", lambda device: "a GPU that is none"),
            _fresh("_missing_once"),
            _fresh("_candidates_once"),
        ):
            yield stub
    finally:
        driver._active = before
        for tunable in _tuning.TUNABLES.values():
            tunable.forget()


def _fresh(name: str) -> Any:
    """What dispatch has found out about this machine is forgotten meanwhile."""
    once = getattr(_dispatch, name).__wrapped__
    return mock.patch.object(_dispatch, name, functools.cache(once))
