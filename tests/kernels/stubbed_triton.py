"""Triton without a GPU: nothing is compiled, and launching does nothing.

The remaining code is the host's: Triton's own Python around a launch, and ours around that.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kernels.core import dispatch, triton_helpers, tuning
from kernels.core import launch as _launch
from kernels.core.operator import Operator


def missing_on_cpu(op: Operator) -> str:
    """Return the reasons for the implementations that this machine lacks, as a choice has them."""
    reasons = {name: i.missing("cpu") for name, i in op.implementations.items()}
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason is not None)


class Driver:
    """Stub of a GPU's driver, for launches; ``device`` and ``stream`` are the current ones."""

    def __init__(self) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", 90, 32)
        self.device = self.stream = 0
        self.launches: list[tuple[Any, ...]] = []
        self.keeps = True  # whether launches are recorded; off while time is taken
        self.scratch = 0  # bytes per program of a kernel

    def launched(self, x, y, z, stream, function, metadata, hook_arguments, types, arguments):
        """Record a launch: grid, stream, kernel, hook arguments, and the values that it reads."""
        read = zip(types, arguments, strict=True)
        values = [value for kind, value in read if kind != "constexpr"]
        self.launches.append((x, y, z, stream, function, metadata, *hook_arguments, *values))

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return self.stream


active: list[Driver] = []  # the last is used; Triton keeps kernels longer than a stub lasts


def _launcher(types: list[str]) -> Any:
    def launch(x, y, z, stream, function, metadata, hook_arguments, enter, leave, *arguments):
        stub = active[-1]
        if stub.keeps:
            hook_arguments = (hook_arguments, enter, leave)
            stub.launched(x, y, z, stream, function, metadata, hook_arguments, types, arguments)

    return launch


def _launcher_3_6(types: list[str]) -> Any:
    def launch(
        x, y, z, stream, function, wide, dependent, scratch, profile, metadata,
        hook_arguments, enter, leave, *arguments,
    ):  # fmt: skip
        stub = active[-1]
        if stub.keeps:
            assert (wide, dependent, profile) == (False, True, None)
            assert (0 if scratch is None else scratch.nbytes) == stub.scratch * x * y * z
            hook_arguments = (hook_arguments, enter, leave)
            stub.launched(x, y, z, stream, function, metadata, hook_arguments, types, arguments)

    return _around(launch)


def _launcher_3_9(types: list[str]) -> Any:
    def launch(
        x, y, z, stream, function, wide, dependent, metadata,
        hook_arguments, enter, leave, scratch, profile, kinds, read, arguments,
    ):  # fmt: skip
        stub = active[-1]
        if stub.keeps:
            assert (wide, dependent, profile) == (False, True, None)
            assert (0 if scratch is None else scratch.nbytes) == stub.scratch * x * y * z
            assert read == own.kernel_signature
            pairs = zip(kinds, arguments, strict=True)
            given = [value for kind, value in pairs if kind.type != "constexpr"]
            hook_arguments = (hook_arguments, enter, leave)
            stub.launched(x, y, z, stream, function, metadata, hook_arguments, read, given)

    own = _around(launch)
    own.arg_annotations = [SimpleNamespace(type=kind) for kind in types]
    own.kernel_signature = [kind for kind in types if kind != "constexpr"]
    return own


def _around(launch: Any) -> Any:
    from triton.backends.nvidia import driver

    own = driver.CudaLauncher.__new__(driver.CudaLauncher)
    own.launch, own.num_ctas, own.gsan_enabled = launch, 1, False
    own.global_scratch_size, own.profile_scratch_size = active[-1].scratch, 0
    own.global_scratch_align = own.profile_scratch_align = 1
    own.launch_cooperative_grid, own.launch_pdl = False, True
    return own


LAUNCHERS = {"3.6": _launcher_3_6, "3.9": _launcher_3_9}


def version() -> str:
    """Return Triton's version, as far as its launchers differ by it."""
    import triton

    return ".".join(triton.__version__.split(".")[:2])


@contextlib.contextmanager
def stubbed() -> Iterator[Driver]:
    """Send every launch to the yielded driver, which records its arguments; operators use Triton.

    Compiled kernels are replaced by one object for each of Triton's keys. Tiles are those of a GPU
    without stored tiles.
    """
    from triton.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    stub = Driver()
    around = LAUNCHERS.get(version(), _launcher)

    def compiled(self, key, signature, device, *_):
        kernel = CompiledKernel.__new__(CompiledKernel)
        kernel.module, kernel._module_pid = object(), None
        kernel.name, kernel.src = self.__name__, None
        kernel.function, kernel.packed_metadata = (self.__name__, device, key), (4, 1, 0)

        kernel._run = around(list(signature.values()))
        self.device_caches[device][0][key] = kernel
        return kernel

    before = driver._active
    driver.set_active(stub)
    active.append(stub)
    _launch.forget()
    try:
        with (
            mock.patch.object(JITFunction, "_do_compile", compiled),
            mock.patch.object(
                triton_helpers, "INTERPRETED", True
            ),  # so that Triton takes the CPU's
            mock.patch.object(tuning, "_gpu", lambda device: "a GPU that is none"),
            _fresh("_missing_once"),
            _fresh("_candidates_once"),
        ):
            yield stub
    finally:
        active.remove(stub)
        driver._active = before
        _launch.forget()
        for tunable in tuning.TUNABLES.values():
            tunable.forget()


def _fresh(name: str) -> Any:
    """Clear meanwhile what dispatch has cached about this machine."""
    once = getattr(dispatch, name).__wrapped__
    return mock.patch.object(dispatch, name, functools.cache(once))
