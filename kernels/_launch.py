"""Launching a Triton kernel that was launched like this before, without asking Triton again.

Triton's own launch finds out at every call which compiled kernel its arguments need: the dtype of
each pointer and whether it is a multiple of 16, whether each integer is 1, a multiple of 16 or
wider than 32 bits, each constant and option. A launcher keeps what Triton then answered under a key
that is finer than Triton's: the current device, dtype and address modulo 16 of each pointer, and
the values themselves of integers, constants and options. Integers that come for the first time, as
sizes do that change at every call, are looked up once more by what Triton's own function says of
them. What is not kept yet is launched by Triton itself, so that nothing here repeats its rules;
under its key, the same compiled kernel is then called as Triton calls it (``_bound_launch``), on
the stream that is current at that call.

Triton launches by itself wherever it does more than that: while Dynamo traces, in the interpreter,
on tensors without memory, and while hooks, debugging or instrumentation are switched on.
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
from kernels._bound_launch import Form, form, scratch_memory
from kernels._triton import INSTALLED

MOST_KEPT = 4096  # keys of one kernel; more are sizes that change at every call

if INSTALLED:
    import triton
    from triton import knobs
    from triton.backends.compiler import BaseBackend
    from triton.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    try:
        from triton.runtime.jit import native_specialize_impl
    except ImportError:  # every integer is then told apart from every other
        _told_apart = None
    else:
        _told_apart = functools.partial(native_specialize_impl, BaseBackend)


_KEPT: list[dict[Any, Any]] = []  # by every launcher
_WITH_MEMORY = frozenset((torch.Tensor, torch.nn.Parameter))  # a subclass may have none
asked: list[tuple[Any, ...]] = [(object(), None, None)]  # the driver, and its device and stream
on_change: list[Callable[[], None]] = []  # told when what is kept is no longer what was
recorders: dict[int, Any] = {}  # by thread: who is told of every launch


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
    how = form()
    code = compile(_source(kernel, how), f"launcher of {kernel.module}.{kernel.__name__}", "exec")
    exec(code, globals(), local)
    alike: dict[Any, Any] = {}
    kept: dict[Any, Any] = {}
    _KEPT.extend((alike, kept))
    return local["make"](kernel, kept, alike, _may_tell(kernel), how)


def forget() -> None:
    """Let Triton launch anew what was kept, by every launcher."""
    for kept in _KEPT:
        kept.clear()
    _changed()


def _changed() -> None:
    for told in on_change:
        told()


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
    _changed()
    try:
        yield spent_ns
    finally:
        for kept, entries in before:
            kept.clear()  # also what was copied in here, and timed with it
            kept.update(entries)
        _changed()


# Names of parameters come into it, which is why all others begin with an underscore.
_LAUNCHER = """
def make(_kernel, _kept, _alike, _may_tell, _form):
  _hooks, _runtime, _compilation, _enter, _leave = _may_tell
  def bind(_found, _x, _y, _z, {others}):
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
      if recorders: _untold()
      return
    {addresses}
    _active, _device_of, _stream_of = asked[0]
    if _active is not driver._active:
      _device_of, _stream_of = _ask()
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
        if recorders: _untold()
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
      _tell(bind, _found, (_x, _y, _z), ({pointers},), ({others},), _device, _may_tell)
  return launch
"""


def _source(kernel: Any, form: Form) -> str:
    """Written out for one kernel, as Triton's own binder is: a loop over parameters is slower."""
    names = [parameter.name for parameter in kernel.params]
    taken = ("torch", "driver", "recorders", "asked", "type", "len", "num_warps", "num_stages")
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
        others=", ".join(name for name in names if name not in pointers),
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
    """Of an integer, what kernels are compiled for: in Triton's own words."""
    name: str = parameter.name
    if parameter.is_constexpr or parameter.annotation_type or _told_apart is None:
        return name
    told = (not parameter.do_not_specialize, not parameter.do_not_specialize_on_alignment)
    return f"_told_apart({name}, False, {told[0]}, {told[1]})"


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

    return contextvars.copy_context().run(launch)  # whoever else launches has another allocator


def _options(num_warps: int | None, num_stages: int | None) -> dict[str, int]:
    given = {"num_warps": num_warps, "num_stages": num_stages}
    return {name: number for name, number in given.items() if number is not None}


def _may_tell(kernel: Any) -> tuple[Any, ...]:
    """What is empty unless something was hooked or set, when ``_watched`` knows what it means."""
    runtime, compilation = knobs.runtime, knobs.compilation
    hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    if _watched(kernel) or not all(hasattr(hook, "calls") for hook in hooks):
        return True, (), (), (), ()  # as the environment says
    chains = [hook.calls for hook in hooks]
    return kernel.pre_run_hooks, vars(runtime), vars(compilation), *chains


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


def _ask() -> tuple[Callable[[], int], Callable[[int], int]]:
    """Whom to ask for the current device and stream, until another driver is active."""
    active = driver.active
    device_of = active.get_current_device
    if device_of is torch.cuda.current_device and torch.cuda.is_initialized():
        device_of = hardware.current_gpu
    asked[0] = (active, device_of, active.get_current_stream)
    return device_of, active.get_current_stream


def _tell(*launch: Any) -> None:
    recorder = recorders.get(threading.get_ident())
    if recorder is not None:
        recorder.launched(*launch)


def _untold() -> None:
    recorder = recorders.get(threading.get_ident())
    if recorder is not None:
        recorder.misses("a launch by Triton")


def _of_tensors(key: tuple[Any, ...]) -> bool:
    return any(isinstance(part, torch.Tensor) for part in key)  # by identity, which says too little


def _entry(kernel: Any, compiled: Any, how: Form) -> tuple[Any, ...] | None:
    if (
        not isinstance(compiled, CompiledKernel)  # still being compiled
        or kernel.used_global_vals  # Triton checks at each launch that they are what they were
    ):
        return None
    bound = how.bound(kernel, compiled)
    # With the kernel itself, which would unload its code if it went.
    return bound and (*bound, compiled)


def _keep(kept: dict[Any, Any], key: tuple[Any, ...], entry: tuple[Any, ...] | None) -> None:
    if entry is None:
        return
    if len(kept) >= MOST_KEPT:
        kept.clear()
    kept[key] = entry
