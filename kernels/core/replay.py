"""Replay of recorded calls: repeats allocations and launches without the deciding Python.

Between its arguments and its results an operator allocates memory and launches kernels. Both depend
on the layout of its tensors (shape, strides, dtype, device, address modulo 16) and on its other
arguments. These form the key of a call. The first few calls of a key run normally, one is recorded,
and later ones are replayed: allocations, launches with the new addresses, counts, results. Checks,
choices, tiles, grids and constants are not computed again, because nothing that they depend on has
changed.

A recording sees every torch operator and every launch (``recorder``). Nothing is replayed, and the
function runs, if a call does anything but allocations, views and cached launches, if a kernel uses
memory that is neither an argument nor an allocation, or if the call depends on more than its
arguments. The same holds while gradients, function transforms or Dynamo are active, and for tensors
without memory.
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

from kernels.core import launch
from kernels.core.operator import traced_as_constant
from kernels.core.recorder import Recorder, Recording
from kernels.core.triton_helpers import INSTALLED, INTERPRETED

if INSTALLED:
    from triton.runtime import driver

Function = TypeVar("Function", bound=Callable[..., Any])
BEFORE = 4  # calls of a key before one is recorded; recording costs what eight replays save
MAX_CACHED = 4096  # calls per function; more of them are sizes that change at every call
SCALARS = frozenset((int, float, bool, str, type(None), torch.dtype))
NEVER = "not to be recorded"  # stored instead of the number of calls or the recording

_CACHES: list[dict[Any, Any]] = []  # caches of all functions
_forgotten = 0  # number of calls of ``forget``


def replayed(function: Function, operators: int = 0) -> Function:
    """Return ``function`` with replay of calls whose key has a recording.

    Its arguments are positional. Its decisions may depend only on them, the current GPU, its
    Tunables and the precision of products. It reports every side effect through ``also``.
    ``operators``: how many operators it may call whose choice is among its arguments.
    """
    if not INSTALLED or INTERPRETED:
        return function
    cache: dict[Any, Any] = {}
    _CACHES.append(cache)
    recorders, active_driver = launch.recorders, launch.active_driver
    precision_of = torch._C._get_fp32_precision_getter  # see ``hardware.product_precision``

    # One function, because calls within it would take longer than what they do.
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
        active, device_of, stream_of = active_driver[0]
        if active is not driver._active:  # nothing was launched yet
            return function(*args)
        device = device_of()
        parts: list[Any] = [device, precision_of("cuda", "matmul")]
        tensors: list[Any] = [None]
        addresses = [0]
        address_bits = 0  # combined by or: the last four bits are 0 if all are aligned to 16 bytes
        for x in args:
            kind = type(x)
            if kind is Tensor or kind is Parameter:
                address = x.data_ptr()
                if not address:
                    return function(*args)
                tensors.append(x)
                addresses.append(address)
                address_bits |= address
                parts += (x.shape, x.stride(), x.dtype, x.get_device())
            elif kind in SCALARS:
                parts.append(x)
            else:
                return function(*args)
        if address_bits & 15:
            parts.append(tuple([address & 15 for address in addresses]))
        key = tuple(parts)
        recording = cache.get(key)
        if type(recording) is not Recording or any(recording.watchers):
            return _call_and_record(function, args, cache, key, recording, operators)
        allocations, views, launches, effects, result, _ = recording
        address_bits = 0
        for allocate in allocations:
            tensor = allocate(tensors)
            address = tensor.data_ptr()
            tensors.append(tensor)
            addresses.append(address)
            address_bits |= address
        if address_bits & 15:  # an address is not aligned as it was when recorded
            return function(*args)
        for base, offset in views:
            addresses.append(addresses[base] + offset)
        stream = stream_of(device)
        for repeat_launch, pick in launches:
            repeat_launch(stream, *pick(addresses))
        for effect in effects:
            effect()
        return result(tensors)

    return call  # type: ignore[return-value]


def forget() -> None:
    """Discard all recordings: something outside the keys has changed."""
    global _forgotten
    _forgotten += 1
    for cache in _CACHES:
        cache.clear()


launch.on_change.append(forget)


def also(effect: Callable[[], None]) -> None:
    """If a call is being recorded, repeat this effect whenever it is replayed."""
    recorder = _recorder()
    if recorder is not None:
        recorder.effects.append(effect)


@traced_as_constant
def not_replayed(why: str) -> None:
    """If a call is being recorded, discard it: it depends on more than its key."""
    recorder = _recorder()
    if recorder is not None:
        recorder.reject(why)


def operator_called() -> None:
    """If a call is being recorded that may call no more operators, discard it."""
    recorder = _recorder()
    if recorder is not None:
        recorder.operators -= 1
        if recorder.operators < 0:
            recorder.reject("an operator, whose choice may change")


def _recorder() -> Recorder | None:
    return launch.recorders.get(threading.get_ident()) if launch.recorders else None


def _call_and_record(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    cache: dict[Any, Any],
    key: Any,
    entry: Any,
    operators: int,
) -> Any:
    """Call the function; record this call if there were ``BEFORE`` calls of its key.

    ``entry`` is the stored value of the key: the number of calls, ``NEVER`` or None.
    """
    if entry is None and len(cache) >= MAX_CACHED:
        cache.clear()
    calls = entry or 0
    if calls != BEFORE:
        if type(calls) is int:
            cache[key] = calls + 1
        return function(*args)
    recorder, forgotten, me = Recorder(key[0], operators), _forgotten, threading.get_ident()
    args = tuple([recorder.add_argument(x) if isinstance(x, Tensor) else x for x in args])
    launch.recorders[me] = recorder
    try:
        with recorder:
            result = function(*args)
    finally:
        del launch.recorders[me]
    if forgotten == _forgotten:
        cache[key] = recorder.recording(result) or NEVER
    return result
