"""The function that a cached launch calls, and its constant arguments, by Triton version.

A compiled kernel's ``run`` is Triton's launcher, a Python object. It allocates the scratch memory
that the kernel needs (as for tensor descriptors) and calls a C function with the arguments and with
facts about the kernel. A cached launch calls that C function directly and skips the work whose
result its cache key determines.

How the function is called is known for the versions below (``third_party/nvidia/backend/driver.py``
and ``driver.c``). With any other version, a cached launch calls ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.core.triton_helpers import INSTALLED

if INSTALLED:
    import triton

Scratch = Callable[[int], Tensor]  # returns the memory that so many programs need


class Form(NamedTuple):
    """Form of a launch: which function to call, and its arguments as source text.

    ``bound(kernel, compiled)`` returns the values of ``names``, the function to call first. It
    returns None if the kernel is not launched in this form. ``call`` is written with these names,
    the grid ``_x``, ``_y`` and ``_z``, the ``_stream``, and {values}: of the parameters, addresses
    and integers as they are, constants as {constants}, if ``call`` lists all parameters.
    """

    names: str
    call: str
    bound: Callable[[Any, Any], tuple[Any, ...] | None]
    constants: str | None = None  # None: constants are left out


def _of_run(kernel: Any, compiled: Any) -> tuple[Any, ...] | None:
    if getattr(compiled.run, "global_scratch_size", 0):
        return None  # the launcher would call an allocator that is not set
    return compiled.run, compiled.function, compiled.packed_metadata


def _of_3_6(kernel: Any, compiled: Any) -> tuple[Any, ...] | None:
    """Bind a function compiled for the signature with its constants, which it does not read."""
    return _function(compiled) if _plain(compiled.run) else None


def _of_3_9(kernel: Any, compiled: Any) -> tuple[Any, ...] | None:
    """Bind the one function for all signatures, which takes a list of the arguments' types.

    That list marks constants to be skipped. They are removed from it, so that they need not be
    passed.
    """
    launcher, parameters = compiled.run, kernel.params
    if not _plain(launcher) or len(launcher.arg_annotations) != len(parameters):
        return None
    kinds = zip(launcher.arg_annotations, parameters, strict=True)
    read = [kind for kind, parameter in kinds if not parameter.is_constexpr]
    return *_function(compiled), read, launcher.kernel_signature


def _plain(launcher: Any) -> bool:
    """Return True if Triton's launcher does nothing but call its function."""
    from triton.backends.nvidia.driver import CudaLauncher

    return (
        type(launcher) is CudaLauncher
        # and not the wrapper that expands tensor descriptors
        and launcher.launch.__name__ == "launch"
        and not launcher.profile_scratch_size
        and not getattr(launcher, "gsan_enabled", False)
    )


def _function(compiled: Any) -> tuple[Any, ...]:
    """Return the function and the arguments that it takes for every kernel."""
    launcher = compiled.run
    return (
        launcher.launch,
        compiled.function,
        launcher.launch_cooperative_grid,
        launcher.launch_pdl,
        compiled.packed_metadata,
        _scratch(launcher),
    )


def scratch_memory(size: int, alignment: int = 0, stream: int | None = None) -> Tensor:
    """Allocate scratch memory for Triton; torch aligns it, and it belongs to this stream."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _scratch(launcher: Any) -> Scratch | None:
    """Return a function that allocates scratch memory for so many programs; None if unneeded."""
    bytes_per_program = launcher.global_scratch_size * launcher.num_ctas
    if not bytes_per_program:
        return None
    return lambda programs: scratch_memory(programs * bytes_per_program)


RUN = Form(
    "_run, _function, _metadata",
    "_run(_x, _y, _z, _stream, _function, _metadata, None, None, None, {values})",
    _of_run,
    "{name}",
)
_FORMS = {
    "3.6": Form(
        "_run, _function, _grid_wide, _dependent, _metadata, _scratch",
        "_run(_x, _y, _z, _stream, _function, _grid_wide, _dependent,"
        " _scratch and _scratch(_x * _y * _z), None, _metadata, None, None, None, {values})",
        _of_3_6,
        "None",
    ),
    "3.9": Form(
        "_run, _function, _grid_wide, _dependent, _metadata, _scratch, _kinds, _types",
        "_run(_x, _y, _z, _stream, _function, _grid_wide, _dependent, _metadata, None, None, None,"
        " _scratch and _scratch(_x * _y * _z), None, _kinds, _types, ({values},))",
        _of_3_9,
    ),
}


def form() -> Form:
    """Return the form of launches for the installed version of Triton."""
    version = ".".join(triton.__version__.split(".")[:2])
    return _FORMS.get(version, RUN)
