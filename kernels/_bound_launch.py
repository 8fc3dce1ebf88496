"""What a kept launch calls, and what of that stays the same: by version of Triton.

A compiled kernel's ``run`` is Triton's launcher, an object in Python: it takes the scratch memory
that the kernel wants, as for tensor descriptors, and calls a function in C with what it was given
and what it knows. A kept launch calls that function itself, without what cannot differ under its
key.
How the function is called is known of the versions below (``third_party/nvidia/backend/driver.py``
and ``driver.c``). With any other, a kept launch calls ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels._triton import INSTALLED

if INSTALLED:
    import triton

Scratch = Callable[[int], Tensor]  # the memory that so many programs want


class Form(NamedTuple):
    """``bound(kernel, compiled)`` are the values of ``names``, the function to call first.

    None if the kernel is not launched in this form. ``call`` is written with these names, the grid
    ``_x``, ``_y`` and ``_z``, the ``_stream``, and {values}: of the parameters, addresses and
    integers as they are; of constants {constants}, if ``call`` names all parameters.
    """

    names: str
    call: str
    bound: Callable[[Any, Any], tuple[Any, ...] | None]
    constants: str | None = None  # None: left out


def _of_run(kernel: Any, compiled: Any) -> tuple[Any, ...] | None:
    if getattr(compiled.run, "global_scratch_size", 0):
        return None  # it would ask an allocator that is not set
    return compiled.run, compiled.function, compiled.packed_metadata


def _of_3_6(kernel: Any, compiled: Any) -> tuple[Any, ...] | None:
    """The function is compiled for the signature, constants included, which it does not read."""
    return _function(compiled) if _plain(compiled.run) else None


def _of_3_9(kernel: Any, compiled: Any) -> tuple[Any, ...] | None:
    """One function for all signatures: a list says what each argument is, constants to be skipped.

    They are taken out of that list, so that they need not be passed.
    """
    launcher, parameters = compiled.run, kernel.params
    if not _plain(launcher) or len(launcher.arg_annotations) != len(parameters):
        return None
    kinds = zip(launcher.arg_annotations, parameters, strict=True)
    read = [kind for kind, parameter in kinds if not parameter.is_constexpr]
    return *_function(compiled), read, launcher.kernel_signature


def _plain(launcher: Any) -> bool:
    """Whether all that Triton's launcher does is to call its function."""
    from triton.backends.nvidia.driver import CudaLauncher

    return (
        type(launcher) is CudaLauncher
        and launcher.launch.__name__ == "launch"  # and not what turns tensor descriptors into it
        and not launcher.profile_scratch_size
        and not getattr(launcher, "gsan_enabled", False)
    )


def _function(compiled: Any) -> tuple[Any, ...]:
    """The function, and what it takes of every kernel."""
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
    """What Triton asks an allocator for; torch's memory is aligned enough and of this stream."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _scratch(launcher: Any) -> Scratch | None:
    """The memory for so many programs; None if they want none."""
    each = launcher.global_scratch_size * launcher.num_ctas
    if not each:
        return None
    return lambda programs: scratch_memory(programs * each)


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
    """The form of this version's launches."""
    version = ".".join(triton.__version__.split(".")[:2])
    return _FORMS.get(version, RUN)
