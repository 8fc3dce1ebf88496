"""What was done for arguments like these is done again, without the Python that decided it.

Between its arguments and its results an operator allocates memory and launches kernels. What it
allocates and launches follows from how its tensors are laid out (shape, strides, dtype, device,
address modulo 16) and from its other arguments, which is what a call is known by here. The first
few of them run as they are written, one is recorded, and those that follow are replayed:
allocations, launches with the new addresses, counts, results. Checks, choices, tiles, grids and
constants are not asked for again, as nothing that they depend on is new.

A recording sees every operation of torch and every launch (``_recorder``). Where there is anything
but allocations, views and kept launches, where a kernel takes memory that neither came in nor was
made, or where more than the arguments was decisive, nothing is replayed and the function runs, as
it does while gradients, function transforms or Dynamo are at work, and on tensors without memory.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from kernels import _launch
from kernels._operator import traced_as_constant
from kernels._recorder import Recorder, Recording
from kernels._triton import INSTALLED, INTERPRETED

if INSTALLED:
    from triton.runtime import driver

Function = TypeVar("Function", bound=Callable[..., Any])
BEFORE = 4  # calls alike until one is recorded, which takes as long as eight replays save
MOST_KEPT = 4096  # calls of one function; more are sizes that change at every call
SCALARS = frozenset((int, float, bool, str, type(None), torch.dtype))
NEVER = "not to be recorded"  # in place of how often it was called, or its recording

_KEPT: list[dict[Any, Any]] = []  # by every function
_forgotten = 0  # times


def replayed(function: Function, operators: int = 0) -> Function:
    """``function``, replayed where a call like this one was recorded.

    It is called by position, and decides by its arguments, the current GPU, its Tunables and the
    precision of products alone; what it leaves behind besides its results it says by ``also``.
    ``operators``: how many it may call whose choice is among its arguments.
    """
    if not INSTALLED or INTERPRETED:
        return function
    kept: dict[Any, Any] = {}
    _KEPT.append(kept)
    recorders, asked = _launch.recorders, _launch.asked
    precision_of = torch._C._get_fp32_precision_getter  # as ``hardware.product_precision``

    # In one piece, as calls within it would take longer than what they do.
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if (
            torch.compiler.is_dynamo_compiling()
            or torch.is_grad_enabled()
            or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0
            or (recorders and threading.get_ident() in recorders)
        ):
            return function(*args)
        active, device_of, stream_of = asked[0]
        if active is not driver._active:  # nothing was launched yet
            return function(*args)
        device = device_of()
        parts: list[Any] = [device, precision_of("cuda", "matmul")]
        tensors: list[Any] = [None]
        addresses = [0]
        odd = 0
        for x in args:
            kind = type(x)
            if kind is Tensor or kind is Parameter:
                address = x.data_ptr()
                if not address:
                    return function(*args)
                tensors.append(x)
                addresses.append(address)
                odd |= address
                parts += (x.shape, x.stride(), x.dtype, x.get_device())
            elif kind in SCALARS:
                parts.append(x)
            else:
                return function(*args)
        if odd & 15:
            parts.append(tuple([address & 15 for address in addresses]))
        key = tuple(parts)
        found = kept.get(key)
        if type(found) is not Recording or any(found.watchers):
            return _called(function, args, kept, key, found, operators)
        makes, views, launches, effects, result, _ = found
        odd = 0
        for make in makes:
            made = make(tensors)
            address = made.data_ptr()
            tensors.append(made)
            addresses.append(address)
            odd |= address
        if odd & 15:  # which it was not when it was recorded
            return function(*args)
        for base, offset in views:
            addresses.append(addresses[base] + offset)
        stream = stream_of(device)
        for again, pick in launches:
            again(stream, *pick(addresses))
        for effect in effects:
            effect()
        return result(tensors)

    return call  # type: ignore[return-value]


def forget() -> None:
    """Record everything anew: something has changed that calls are not known by."""
    global _forgotten
    _forgotten += 1
    for kept in _KEPT:
        kept.clear()


_launch.on_change.append(forget)


def also(effect: Callable[[], None]) -> None:
    """If a call is being recorded, do this whenever it is replayed."""
    recorder = _recorder()
    if recorder is not None:
        recorder.effects.append(effect)


@traced_as_constant
def not_replayed(why: str) -> None:
    """If a call is being recorded, keep nothing: it depends on more than it is known by."""
    recorder = _recorder()
    if recorder is not None:
        recorder.misses(why)


def operator_called() -> None:
    """If a call is being recorded that may call no more operators, keep nothing."""
    recorder = _recorder()
    if recorder is not None:
        recorder.operators -= 1
        if recorder.operators < 0:
            recorder.misses("an operator, for which another choice may be made")


def _recorder() -> Recorder | None:
    return _launch.recorders.get(threading.get_ident()) if _launch.recorders else None


def _called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kept: dict[Any, Any],
    key: Any,
    found: Any,
    operators: int,
) -> Any:
    """Without a replay; recorded if there were calls enough."""
    if found is None and len(kept) >= MOST_KEPT:
        kept.clear()
    calls = found or 0
    if calls != BEFORE:
        if type(calls) is int:
            kept[key] = calls + 1
        return function(*args)
    recorder, forgotten, me = Recorder(key[0], operators), _forgotten, threading.get_ident()
    args = tuple([recorder.given(x) if isinstance(x, Tensor) else x for x in args])
    _launch.recorders[me] = recorder
    try:
        with recorder:
            result = function(*args)
    finally:
        del _launch.recorders[me]
    if forgotten == _forgotten:
        kept[key] = recorder.recording(result) or NEVER
    return result
