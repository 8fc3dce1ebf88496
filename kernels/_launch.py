"""Launching a Triton kernel that was launched like this before, without asking Triton again.

Triton's own launch finds out at every call which compiled kernel its arguments need: the dtype of
each pointer and whether it is a multiple of 16, whether each integer is 1, a multiple of 16 or
wider than 32 bits, each constant and option. A launcher keeps what Triton then answered under a key
that is finer than Triton's: the current device, dtype and address modulo 16 of each pointer, and
the values themselves of integers, constants and options. What is not kept yet is launched by Triton
itself, so that nothing here repeats its rules; under its key, the same compiled kernel is then
called as Triton calls it, on the stream that is current at that call.

Triton launches by itself wherever it does more than that: while Dynamo traces, in the interpreter,
on tensors without memory, and while hooks, debugging or instrumentation are switched on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernels._triton import INSTALLED

MOST_KEPT = 4096  # keys of one kernel; more are sizes that change at every call

if INSTALLED:
    from triton import knobs
    from triton.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

_KEPT: list[dict[Any, Any]] = []  # by every launcher
_WITH_MEMORY = frozenset((torch.Tensor, torch.nn.Parameter))  # a subclass may have none


def launcher(kernel: Any) -> Callable[..., None]:
    """A function that launches ``kernel``: ``launch(grid, *arguments, **options)``.

    It does what ``kernel[grid](*arguments, **options)`` does, and returns nothing. Parameters whose
    names end in ``_ptr`` take tensors or None, and the first of them a tensor; of the others, those
    that are not constants take integers. Options are ``num_warps`` and ``num_stages``; None leaves
    them to Triton. That all tensors are on the current GPU is the caller's to see to: Triton looks
    only the first time.
    """
    if not INSTALLED or not isinstance(kernel, JITFunction):

        def launch(grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
            kernel[grid](*arguments, **options)

        return launch
    local: dict[str, Any] = {}
    code = compile(_source(kernel), f"launcher of {kernel.module}.{kernel.__name__}", "exec")
    exec(code, globals(), local)
    kept: dict[Any, Any] = {}
    _KEPT.append(kept)
    return local["make"](kernel, kept, driver, _WITH_MEMORY, _watched, _options, _keep)


@contextlib.contextmanager
def launches_timed() -> Iterator[list[int]]:
    """Nanoseconds in Triton's launcher and the driver, for each launch kept before that runs again.

    Not for what is launched in other ways: for the first time, by a library, by compiled code.
    """
    spent_ns: list[int] = []

    def timed(run: Callable[..., None]) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            began = time.perf_counter_ns()
            run(*arguments)
            spent_ns.append(time.perf_counter_ns() - began)

        return launch

    before = [(kept, dict(kept)) for kept in _KEPT]
    for kept, entries in before:
        kept.update({key: (timed(run), *rest) for key, (run, *rest) in entries.items()})
    try:
        yield spent_ns
    finally:
        for kept, entries in before:
            kept.update(entries)


# Names of parameters come into it, which is why all others begin with an underscore.
_LAUNCHER = """
def make(_kernel, _kept, _driver, _with_memory, _watched, _options, _keep):
  def launch(_grid, {parameters}, num_warps=None, num_stages=None):
    if torch.compiler.is_compiling() or type({first}) not in _with_memory or _watched(_kernel):
      _kernel[_grid]({parameters}, **_options(num_warps, num_stages))
      return
    {addresses}
    _active = _driver.active
    _device = _active.get_current_device()
    _key = (_device, {key}, num_warps, num_stages)
    _found = _kept.get(_key)
    if _found is None:
      _compiled = _kernel[_grid]({parameters}, **_options(num_warps, num_stages))
      _keep(_kept, _key, _kernel, _compiled)
      return
    _run, _function, _metadata, _ = _found
    _x, _y, _z = _grid if len(_grid) == 3 else (*_grid, 1, 1)[:3]
    _stream = _active.get_current_stream(_device)
    _run(_x, _y, _z, _stream, _function, _metadata, None, None, None, {values})
  return launch
"""


def _source(kernel: Any) -> str:
    """Written out for one kernel, as Triton's own binder is: a loop over parameters is slower."""
    names = [parameter.name for parameter in kernel.params]
    taken = ("torch", "type", "len", "num_warps", "num_stages")
    assert not any(name.startswith("_") or name in taken for name in names)
    pointers = [name for name in names if name.endswith("_ptr")]
    return _LAUNCHER.format(
        parameters=", ".join(names),
        first=pointers[0],
        addresses="\n    ".join(
            f"_a_{name} = _t_{name} = None\n"
            f"    if {name} is not None: _a_{name}, _t_{name} = {name}.data_ptr(), {name}.dtype"
            for name in pointers
        ),
        key=", ".join(
            f"_t_{name}, _a_{name} and _a_{name} & 15" if name in pointers else name
            for name in names
        ),
        values=", ".join(f"_a_{name}" if name in pointers else name for name in names),
    )


def _options(num_warps: int | None, num_stages: int | None) -> dict[str, int]:
    given = {"num_warps": num_warps, "num_stages": num_stages}
    return {name: number for name, number in given.items() if number is not None}


def _watched(kernel: Any) -> bool:
    """Whether Triton's own launch would tell someone, or compile in another way than usual."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(
        getattr(enter, "calls", enter)  # a chain of hooks, one hook, or None
        or getattr(leave, "calls", leave)
        or kernel.pre_run_hooks
        or runtime.debug
        or runtime.add_stages_inspection_hook
        or knobs.compilation.instrumentation_mode
    )


def _keep(kept: dict[Any, Any], key: tuple[Any, ...], kernel: Any, compiled: Any) -> None:
    if (
        not isinstance(compiled, CompiledKernel)  # still being compiled
        or kernel.used_global_vals  # Triton checks at each launch that they are what they were
        or any(isinstance(part, torch.Tensor) for part in key)  # by identity, which says too little
    ):
        return
    if len(kept) >= MOST_KEPT:
        kept.clear()
    # With the kernel itself, which would unload its code if it went.
    kept[key] = compiled.run, compiled.function, compiled.packed_metadata, compiled
