"""Choice of an implementation by measurement, for ``auto`` on a GPU.

Implementations are timed (``implementation_timing``) once for each class of shapes. A class has the
exact last dimension of each tensor and every other dimension rounded up to a power of two, so that
similar shapes and growing lengths need no new measurement. Results are stored by GPU, by versions
of torch, Triton and the libraries, and by the operator's source.

Nothing is measured while a CUDA graph is captured or torch.compile traces, under modes that watch
operators, in a process of several ranks (they would choose differently), for quantized weights, or
for tensors without memory. In these cases a stored result decides, else the operator's own rule.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernels import hardware
from kernels.core import launch, replay, tuned_files
from kernels.core.implementation_timing import (
    NO_MEMORY,
    Cost,
    Measurement,
    contenders,
    measure,
)
from kernels.core.libraries import version
from kernels.core.operator import MOST_REMEMBERED, OPS, Operator, traced_as_constant
from kernels.core.triton_helpers import INTERPRETED, power_of_two

DEVICES = ("cuda",)  # types of devices on which ``auto`` measures
SMALL = 64  # integers up to here are exact in a class of shapes
LIBRARIES = (
    "flash-attn", "flash-attn-3", "flash-attn-4", "liger-kernel", "quack-kernels", "fla-core",
    "flash-linear-attention", "mamba-ssm",
)  # fmt: skip
CODES = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
_SCALARS = (bool, str, type(None), torch.dtype)

_log = logging.getLogger(__name__)
_lock = threading.RLock()  # backward passes call operators in autograd's threads
_is_on, _may_measure = True, True
_captured_blocks = 0  # number of entered ``captured_choices``
_known: dict[tuple[str, str, str], Measurement] = {}  # by GPU, operator and class
_loaded: set[tuple[str, str]] = set()
_recent: dict[tuple[Any, ...], tuple[tuple[str, ...], str]] = {}


@contextmanager
def measuring(is_on: bool) -> Iterator[None]:
    """Let ``auto`` measure in the complete process, or only use its rules."""
    global _is_on
    before = _is_on
    _is_on = is_on
    forget()
    try:
        yield
    finally:
        _is_on = before
        forget()


@contextmanager
def known_only() -> Iterator[None]:
    """Measure nothing inside the block; use stored results."""
    global _may_measure
    before = _may_measure
    _may_measure = False
    try:
        yield
    finally:
        _may_measure = before


@contextmanager
def captured_choices() -> Iterator[None]:
    """Choose implementations as in a captured step, in the complete process.

    A captured step has no host time, so that another implementation may be the fastest. It must
    have run before the capture: libraries plan and allocate in their first call, which fails in a
    capture.
    """
    global _captured_blocks
    with _lock:
        _captured_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _captured_blocks -= 1


def is_captured(x: Tensor) -> bool:
    """Return True if a call with ``x`` is captured, or chooses as a captured call."""
    return x.is_cuda and (_captured_blocks > 0 or torch.cuda.is_current_stream_capturing())


def forget() -> None:
    """Discard results that were read from files; the next call reads the files again."""
    with _lock:
        _known.clear()
        _loaded.clear()
        _recent.clear()
        _file.cache_clear()
        replay.forget()


def measurements() -> dict[tuple[str, str], Measurement]:
    """Return the results of this process by operator and class of shapes."""
    return {(op_name, written): value for (_, op_name, written), value in _known.items()}


def ranking(
    op: Operator, candidates: tuple[str, ...], args: tuple[Any, ...]
) -> tuple[tuple[str, ...], str] | None:
    """Return the implementations by cost for these inputs, and the reason; None if unknown.

    Measures them if that is allowed at this moment.
    """
    if not _is_on or len(candidates) < 2:
        return None
    grads = [x.requires_grad for x in args if isinstance(x, Tensor)]
    trains = torch.is_grad_enabled() and any(grads)
    if torch.compiler.is_compiling():
        parts = _shape_class(args)
        return None if parts is None else _while_tracing(op.name, trains, *parts)
    if args[0].is_cuda and not hardware.any_cuda():  # fake tensors of an absent GPU
        return None
    captured = is_captured(args[0])
    device = args[0].get_device()  # -1 on the CPU
    raw = (
        op.name, trains, captured, device, hardware.product_precision(),
        *[(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x for x in args],
    )  # fmt: skip
    try:
        recent = _recent.get(raw)
    except TypeError:  # an argument that has no hash
        return None
    if recent is not None:
        return recent
    parts = _shape_class(args)
    if parts is None:
        return None
    gpu = _gpu(device)
    written = _written(trains, *parts)
    with _lock:
        known = _lookup(gpu, op.name, written)
        if known is not None and _has_new(known, candidates):
            known = None
        if known is None or _accepts_more(op, known, candidates, args):
            if not _can_measure(args):
                replay.not_replayed("a choice that is to be measured")
                return None if known is None else (known.ranking(captured), known.text(captured))
            known = _measure_and_store(op, gpu, written, candidates, args)
        result = known.ranking(captured), known.text(captured)
        if len(_recent) >= MOST_REMEMBERED:
            _recent.clear()
        _recent[raw] = result
    return result


def _shape_class(args: tuple[Any, ...]) -> list[Any] | None:
    """Return the key of a measurement; None if an argument has an unsupported type.

    Loops compare sizes with powers of two, so that torch.compile guards a range and not a size.
    """
    parts: list[Any] = []
    for x in args:
        if isinstance(x, Tensor):
            if x.dtype in CODES:  # implementations multiply these in different precisions
                return None
            parts.append(x.dtype)
            for size in x.shape[:-1]:
                parts.append(_round_up(size))
            if x.dim():
                parts.append(len(range(x.shape[-1])))  # a symbol as its number
        elif isinstance(x, _SCALARS):
            parts.append(x)
        elif isinstance(x, float):
            parts.append("float")
        elif isinstance(x, int):
            parts.append(x if -1 <= x <= SMALL else _round_up(x))
        else:
            return None
    return parts


def _round_up(size: Any) -> int:
    if type(size) is int and not torch.compiler.is_compiling():
        return power_of_two(size) if size else 0
    bound = 0 if size == 0 else 1
    while bound < size:
        bound = 2 * bound
    return bound


@traced_as_constant
def _while_tracing(op_name: str, trains: bool, *parts: Any) -> tuple[tuple[str, ...], str] | None:
    if not hardware.has_gpu() or INTERPRETED:
        return None
    known = _lookup(_gpu(torch.cuda.current_device()), op_name, _written(trains, *parts))
    return None if known is None else (known.ranking(True), known.text(True))


def _written(trains: bool, *parts: Any) -> str:
    precision = hardware.product_precision() if torch.float32 in parts else ""
    words = [str(part).removeprefix("torch.") for part in parts]
    return ",".join([*words, "trains" if trains else "infers", *([precision] if precision else [])])


@functools.cache
def _gpu(device: int) -> str:
    return hardware.of(device if device >= 0 else "cpu").name


def _has_new(known: Measurement, candidates: tuple[str, ...]) -> bool:
    """Return True if an implementation can run that could not when this was measured."""
    return not set(candidates) <= set(known.order)


def _accepts_more(
    op: Operator, known: Measurement, candidates: tuple[str, ...], args: tuple[Any, ...]
) -> bool:
    """Return True if all measured implementations accept these inputs, and others do, too.

    Inputs of one class may differ in strides and addresses, which some implementations refuse.
    """
    compared = {*known.costs, *known.dropped}
    if not contenders(op, [name for name in candidates if name not in compared], args):
        return False  # usually
    return compared < set(contenders(op, candidates, args))


def _lookup(gpu: str, op_name: str, written: str) -> Measurement | None:
    if (gpu, op_name) not in _loaded:
        _loaded.add((gpu, op_name))
        for key, stored in tuned_files.load_table(_file(gpu, op_name), "choices", _decode).items():
            _known.setdefault((gpu, op_name, key), stored)
    return _known.get((gpu, op_name, written))


def _decode(entry: dict[str, Any]) -> Measurement:
    costs = {
        str(name): Cost(float(cost["device_us"]), float(cost["call_us"]))
        for name, cost in entry["costs"].items()
    }
    return Measurement(tuple(entry["order"]), costs, dict(entry["dropped"]))


@functools.cache
def _file(gpu: str, op_name: str) -> Path:
    return tuned_files.of_source(gpu, f"choice.{op_name}", _source(op_name))


@functools.cache
def _source(op_name: str) -> str:
    """Return the operator's source and the versions of the libraries that it may use."""
    file = Path(OPS[op_name].function.__code__.co_filename)
    files = sorted(file.parent.glob("*.py")) if file.stem == "__init__" else [file]
    cudnn = str(torch.backends.cudnn.version()) if torch.cuda.is_available() else ""
    versions = [cudnn, *[f"{name} {v}" for name in LIBRARIES if (v := version(name))]]
    return "\n".join([*versions, *[path.read_text() for path in files if path.is_file()]])


def _can_measure(args: tuple[Any, ...]) -> bool:
    """Return True if a measurement now would be undisturbed and would disturb nothing."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    return (
        _may_measure
        # Before the addresses, which tensors under these transforms do not have.
        and not torch._C._are_functorch_transforms_active()
        and all(type(x) in (Tensor, torch.nn.Parameter) and x.data_ptr() for x in tensors)
        and not (args[0].is_cuda and torch.cuda.is_current_stream_capturing())
        and not (torch.distributed.is_available() and torch.distributed.is_initialized())
        and not torch._C._len_torch_dispatch_stack()
        and forward_ad._current_level < 0
        and not (launch.recorders and threading.get_ident() in launch.recorders)
    )


def _measure_and_store(
    op: Operator, gpu: str, written: str, candidates: tuple[str, ...], args: tuple[Any, ...]
) -> Measurement:
    known = measure(op, candidates, args)
    _known[gpu, op.name, written] = known
    # Memory that is short now is no fact about the GPU: another process measures again.
    if known.costs and NO_MEMORY not in known.dropped.values():
        file = _file(gpu, op.name)
        _warn_unstored(tuned_files.add_entry(file, "choices", written, known, _decode))
    replay.forget()
    return known


@functools.cache
def _warn_unstored(why: str) -> None:
    if why:
        _log.warning("Measured choices of implementations are not stored: %s", why)
