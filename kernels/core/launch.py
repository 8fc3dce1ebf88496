"""Fast launches of Triton kernels that were launched with the same kind of arguments before.

At every launch Triton determines which compiled kernel the arguments need: the dtype of each
pointer and whether it is a multiple of 16; whether each integer is 1, a multiple of 16 or wider
than 32 bits; each constant and option. A launcher here caches Triton's answer under a key that is
finer than Triton's: the current device, dtype and address modulo 16 of each pointer, and the values
of integers, constants and options. Integers seen for the first time, such as sizes that change at
every call, are looked up once more by the classes that Triton's own function assigns. A launch
without a cache entry is made by Triton itself, so that nothing here repeats its rules. With an
entry, the same compiled kernel is called as Triton calls it (``bound_launch``), on the stream that
is current at that call.

Triton itself also launches in cases with more work: while Dynamo traces, in the interpreter, on
tensors without memory, and while hooks, debugging or instrumentation are switched on.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernels import hardware
from kernels.core.bound_launch import Form, form, scratch_memory
from kernels.core.triton_helpers import INSTALLED

MAX_CACHED = 4096  # keys per kernel; more of them are sizes that change at every call

if INSTALLED:
    import triton
    from triton import knobs
    from triton.backends.compiler import BaseBackend
    from triton.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    try:
        from triton.runtime.jit import native_specialize_impl
    except ImportError:  # then every integer has its own entry
        _integer_class = None
    else:
        _integer_class = functools.partial(native_specialize_impl, BaseBackend)


_CACHES: list[dict[Any, Any]] = []  # caches of all launchers
_WITH_MEMORY = frozenset((torch.Tensor, torch.nn.Parameter))  # a subclass may have none
# the driver, and its device and stream functions
active_driver: list[tuple[Any, ...]] = [(object(), None, None)]
on_change: list[Callable[[], None]] = []  # called when cached launches become invalid
recorders: dict[int, Any] = {}  # by thread: recorders that observe every launch


def launcher(kernel: Any) -> Callable[..., None]:
    """Return a function that launches ``kernel``: ``launch(grid, *arguments, **options)``.

    It launches as ``kernel[grid](*arguments, **options)``, and returns nothing. Parameters whose
    names end in ``_ptr`` take tensors or None, and the first of them takes a tensor. Other
    parameters that are not constants take integers. Options are ``num_warps`` and ``num_stages``;
    None leaves them to Triton. The caller must make sure that all tensors are on the current GPU:
    Triton checks only the first time.
    """
    if not INSTALLED or not isinstance(kernel, JITFunction):

        def launch(grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
            kernel[grid](*arguments, **options)

        return launch
    local: dict[str, Any] = {}
    launch_form = form()
    code = compile(
        _source(kernel, launch_form), f"launcher of {kernel.module}.{kernel.__name__}", "exec"
    )
    exec(code, globals(), local)
    alike: dict[Any, Any] = {}
    cache: dict[Any, Any] = {}
    _CACHES.extend((alike, cache))
    return local["make"](kernel, cache, alike, _observers(kernel), launch_form)


def forget() -> None:
    """Clear the caches of every launcher, so that Triton launches everything again."""
    for cache in _CACHES:
        cache.clear()
    _invalidate()


def _invalidate() -> None:
    for callback in on_change:
        callback()


@contextlib.contextmanager
def launches_timed() -> Iterator[list[int]]:
    """Collect nanoseconds in Triton's launcher and the driver for each launch that is cached.

    Other launches are not timed: first launches, those of libraries, and those of compiled code.
    """
    spent_ns: list[int] = []

    def timed(run: Callable[..., None]) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            began = time.perf_counter_ns()
            run(*arguments)
            spent_ns.append(time.perf_counter_ns() - began)

        return launch

    before = [(cache, dict(cache)) for cache in _CACHES]
    for cache, entries in before:
        cache.update({key: (timed(run), *rest) for key, (run, *rest) in entries.items()})
    _invalidate()
    try:
        yield spent_ns
    finally:
        for cache, entries in before:
            cache.clear()  # also removes entries of timed candidates
            cache.update(entries)
        _invalidate()


# Names of kernel parameters occur in it, so all other names begin with an underscore.
_LAUNCHER = """
def make(_kernel, _kept, _alike, _observers, _form):
  _hooks, _runtime, _compilation, _enter, _leave = _observers
  def bind(_found, _x, _y, _z, {scalars}):
    {names}, _ = _found
    def again(_stream, {given}, _found=_found):  # with which the kernel stays
      {call}
    return again
  def launch(_grid, {parameters}, num_warps=None, num_stages=None):
    if torch.compiler.is_dynamo_compiling():
      _kernel[_grid]({parameters}, **_options(num_warps, num_stages))
      return
    if (
      type({first}) not in _WITH_MEMORY
      or (_hooks or _runtime or _compilation or _enter or _leave) and _watched(_kernel)
    ):
      _by_triton(_kernel, _grid, ({parameters},), num_warps, num_stages)
      if recorders: _notify_unrecordable()
      return
    {addresses}
    _active, _device_of, _stream_of = active_driver[0]
    if _active is not driver._active:
      _device_of, _stream_of = _query_driver()
    _device = _device_of()
    _odd = ({any_address}) & 15
    if _odd:
      _odd = ({residues},)
    _key = (_device, _odd, {key}, num_warps, num_stages)
    _found = _kept.get(_key)
    if _found is None:
      _like = (_device, _odd, {like}, num_warps, num_stages)
      _found = _alike.get(_like)
      if _found is None:
        _compiled = _by_triton(_kernel, _grid, ({parameters},), num_warps, num_stages)
        if not _of_tensors(_key):
          _keep(_alike, _like, _entry(_kernel, _compiled, _form))
        if recorders: _notify_unrecordable()
        return
      _keep(_kept, _key, _found)
    {names}, _ = _found
    _n = len(_grid)
    _x = _grid[0]
    _y = _grid[1] if _n > 1 else 1
    _z = _grid[2] if _n > 2 else 1
    _stream = _stream_of(_device)
    {call}
    if recorders:
      _notify_recorder(
        bind, _found, (_x, _y, _z), ({pointers},), ({scalars},), _device, _observers
      )
  return launch
"""


def _source(kernel: Any, form: Form) -> str:
    """Write the launcher's source for one kernel, as Triton's binder does: a loop is slower."""
    names = [parameter.name for parameter in kernel.params]
    taken = [
        "torch",
        "driver",
        "recorders",
        "active_driver",
        "type",
        "len",
        "num_warps",
        "num_stages",
    ]
    assert not any(name.startswith("_") or name in taken for name in names)
    pointers = [name for name in names if name.endswith("_ptr")]
    values = [
        f"_a_{name}"
        if name in pointers
        else name
        if not parameter.is_constexpr
        else form.constants and form.constants.format(name=name)
        for name, parameter in zip(names, kernel.params, strict=True)
    ]
    return _LAUNCHER.format(
        parameters=", ".join(names),
        pointers=", ".join(pointers),
        scalars=", ".join(name for name in names if name not in pointers),
        given=", ".join(f"_a_{name}" for name in pointers),
        first=pointers[0],
        addresses="\n    ".join(
            f"if {name} is None: _a_{name} = 0; _t_{name} = None\n"
            f"    else: _a_{name} = {name}.data_ptr(); _t_{name} = {name}.dtype"
            for name in pointers
        ),
        any_address=" | ".join(f"_a_{name}" for name in pointers),
        residues=", ".join(f"_a_{name} & 15" for name in pointers),
        key=", ".join(f"_t_{name}" if name in pointers else name for name in names),
        like=", ".join(
            f"_t_{name}" if name in pointers else _as_triton_tells_apart(parameter)
            for name, parameter in zip(names, kernel.params, strict=True)
        ),
        names=form.names,
        call=form.call.format(values=", ".join(value for value in values if value)),
    )


def _as_triton_tells_apart(parameter: Any) -> str:
    """Return an expression for the class by which Triton specializes an integer parameter."""
    name: str = parameter.name
    if parameter.is_constexpr or parameter.annotation_type or _integer_class is None:
        return name
    specialized = (not parameter.do_not_specialize, not parameter.do_not_specialize_on_alignment)
    return f"_integer_class({name}, False, {specialized[0]}, {specialized[1]})"


def _by_triton(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    num_warps: int | None,
    num_stages: int | None,
) -> Any:
    options = _options(num_warps, num_stages)

    def launch() -> Any:
        triton.set_allocator(scratch_memory)
        return kernel[grid](*arguments, **options)

    return contextvars.copy_context().run(launch)  # another launcher has its own allocator


def _options(num_warps: int | None, num_stages: int | None) -> dict[str, int]:
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return {name: number for name, number in options.items() if number is not None}


def _observers(kernel: Any) -> tuple[Any, ...]:
    """Return the collections that are empty unless a hook or option is set; see ``_watched``."""
    runtime, compilation = knobs.runtime, knobs.compilation
    hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    if _watched(kernel) or not all(hasattr(hook, "calls") for hook in hooks):
        return True, (), (), (), ()  # because of the environment
    chains = [hook.calls for hook in hooks]
    return kernel.pre_run_hooks, vars(runtime), vars(compilation), *chains


def _watched(kernel: Any) -> bool:
    """Return True if Triton's own launch would call a hook, or compile differently than usual."""
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


def _query_driver() -> tuple[Callable[[], int], Callable[[int], int]]:
    """Return the functions for the current device and stream, until another driver is active."""
    active = driver.active
    device_of = active.get_current_device
    if device_of is torch.cuda.current_device and torch.cuda.is_initialized():
        device_of = hardware.current_gpu
    active_driver[0] = (active, device_of, active.get_current_stream)
    return device_of, active.get_current_stream


def _notify_recorder(*launch: Any) -> None:
    recorder = recorders.get(threading.get_ident())
    if recorder is not None:
        recorder.launched(*launch)


def _notify_unrecordable() -> None:
    recorder = recorders.get(threading.get_ident())
    if recorder is not None:
        recorder.reject("a launch by Triton")


def _of_tensors(key: tuple[Any, ...]) -> bool:
    # by identity, which is not specific enough
    return any(isinstance(part, torch.Tensor) for part in key)


def _entry(kernel: Any, compiled: Any, launch_form: Form) -> tuple[Any, ...] | None:
    if (
        not isinstance(compiled, CompiledKernel)  # still being compiled
        or kernel.used_global_vals  # Triton checks their values at each launch
    ):
        return None
    bound = launch_form.bound(kernel, compiled)
    # Holds the compiled kernel, whose code would be unloaded without a reference.
    return bound and (*bound, compiled)


def _keep(cache: dict[Any, Any], key: tuple[Any, ...], entry: tuple[Any, ...] | None) -> None:
    if entry is None:
        return
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[key] = entry
