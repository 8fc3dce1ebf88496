"""Choice of an implementation by measurement: what ``auto`` uses on a GPU.

Every implementation that accepts the inputs and that ``auto`` does not avoid is compared with the
first of them and timed, once for each class of shapes. Two numbers decide. ``device_us`` is GPU
time with cold caches, launches hidden: the cost in a captured or compiled step. ``call_us`` is the
time of a call in a loop of calls, where Python and launches count: with it the cost in any other
step is the larger of both. In training both include the backward pass.

A class holds the last dimension of each tensor as it is and every other one rounded up to a power
of two, so that unlisted shapes and growing lengths need no measurement of their own. Results are
stored by GPU, by versions of torch, Triton and the libraries, and by the operator's source.

Nothing is measured while a CUDA graph is captured or torch.compile traces, under modes that watch
operators, in a process of several ranks (they would choose differently), of quantized codes, or on
tensors without memory. There a stored result decides, else the operator's own rule.
"""

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernels import hardware
from kernels.core import launch, replay, tuned_files
from kernels.core.libraries import version
from kernels.core.operator import (
    MOST_REMEMBERED,
    Implementation,
    Operator,
    traced_as_constant,
)
from kernels.core.triton_helpers import INTERPRETED, on_device, power_of_two
from kernels.core.tuning import difference, flat, free_memory, synchronize, timeable

MEASURED = "measured"  # prefix of the reason for an implementation that was the fastest
DEVICES = ("cuda",)  # types of devices on which ``auto`` measures
GAIN = 0.98  # of the first implementation's cost: a closer result may be noise
ROUNDS, CALLS = 3, 5  # of single calls with cold caches, interleaved
LOOP_US, MOST_IN_LOOP = 3000.0, 20  # of a loop of calls
HOPELESS = 5.0  # times the fastest so far: one round is enough
SMALL = 64  # integers up to here are exact in a class of shapes
LIBRARIES = (
    "flash-attn", "flash-attn-3", "flash-attn-4", "liger-kernel", "quack-kernels", "fla-core",
    "flash-linear-attention", "mamba-ssm",
)  # fmt: skip
CODES = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
_SCALARS = (bool, str, type(None), torch.dtype)


@dataclass(frozen=True)
class Cost:
    """Microseconds of one call: GPU time with cold caches, and time in a loop of calls."""

    device_us: float
    call_us: float

    def of_step(self, captured: bool) -> float:
        """Return what a call adds to a step that is captured or compiled, or is not."""
        return self.device_us if captured else max(self.device_us, self.call_us)


@dataclass(frozen=True)
class Measurement:
    """Costs by implementation for one class of shapes; ``dropped``: which failed, and why.

    ``order``: the implementations as the operator's rule orders them.
    """

    order: tuple[str, ...]
    costs: dict[str, Cost] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    def ranking(self, captured: bool) -> tuple[str, ...]:
        """Return the implementations by cost; the rule's first, unless another is clearly ahead."""
        cost = {name: c.of_step(captured) for name, c in self.costs.items()}
        ranked = sorted(cost, key=lambda name: cost[name])
        first = next((name for name in self.order if name in cost), "")
        if first and cost[ranked[0]] > GAIN * cost[first]:
            ranked.remove(first)
            ranked.insert(0, first)
        return tuple(ranked)

    def text(self, captured: bool) -> str:
        """Return the numbers in one clause, the fastest first."""
        parts = [
            f"{name} {self.costs[name].of_step(captured) / 1e3:.3f}"
            for name in sorted(self.costs, key=lambda n: self.costs[n].of_step(captured))
        ]
        if parts:
            parts[0] += " ms"
        how = "GPU time" if captured else "GPU and host time"
        dropped = "".join(f"; {name} dropped: {why}" for name, why in self.dropped.items())
        return f"{MEASURED}, {how} of a call: {', '.join(parts)}{dropped}"


_lock = threading.RLock()  # backward passes call operators in autograd's threads
_is_on, _may_measure = True, True
_known: dict[tuple[str, str, str], Measurement] = {}  # by GPU, operator and class
_loaded: set[tuple[str, str]] = set()
_recent: dict[tuple[Any, ...], tuple[tuple[str, ...], str]] = {}


@contextmanager
def measuring(is_on: bool) -> Iterator[None]:
    """Let ``auto`` measure what is missing, or only use its rules, in the whole process."""
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
    """Measure nothing inside the block; use what is known."""
    global _may_measure
    before = _may_measure
    _may_measure = False
    try:
        yield
    finally:
        _may_measure = before


def forget() -> None:
    """Discard what was read from files, so that the next call reads them again."""
    with _lock:
        _known.clear()
        _loaded.clear()
        _recent.clear()
        _file.cache_clear()
        replay.forget()


def measurements() -> dict[tuple[str, str], Measurement]:
    """Return what is known in this process by operator and class of shapes."""
    return {(op_name, written): value for (_, op_name, written), value in _known.items()}


def ranking(
    op: Operator, candidates: tuple[str, ...], args: tuple[Any, ...]
) -> tuple[tuple[str, ...], str] | None:
    """Return the implementations by cost for these inputs, and the reason; None if unknown.

    Measures them if that is allowed at this moment.
    """
    if not _is_on or len(candidates) < 2:
        return None
    if args[0].is_cuda and not hardware.any_cuda():  # fake tensors of an absent GPU
        return None
    grads = [x.requires_grad for x in args if isinstance(x, Tensor)]
    trains = torch.is_grad_enabled() and any(grads)
    if torch.compiler.is_compiling():
        parts = _shape_class(args)
        return None if parts is None else _while_tracing(op.name, trains, *parts)
    captured = args[0].is_cuda and torch.cuda.is_current_stream_capturing()
    device = args[0].get_device()  # -1 on the CPU
    raw = (
        op.name, trains, captured, device,
        *[(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in args],
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
        if known is None or _has_new(known, candidates):
            if not _can_measure(args):
                replay.not_replayed("a choice that is to be measured")
                return None
            known = _measure_and_store(op, gpu, written, candidates, args)
        result = known.ranking(captured), known.text(captured)
        if len(_recent) >= MOST_REMEMBERED:
            _recent.clear()
        _recent[raw] = result
    return result


def _shape_class(args: tuple[Any, ...]) -> list[Any] | None:
    """Return what a measurement depends on; None if an argument is of another kind.

    Loops compare sizes with powers of two, so that torch.compile guards a range and not a size.
    """
    parts: list[Any] = []
    for x in args:
        if isinstance(x, Tensor):
            if x.dtype in CODES:  # implementations multiply codes in different precisions
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
    from kernels.core.dispatch import OPS

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
        and all(type(x) in (Tensor, torch.nn.Parameter) and x.data_ptr() for x in tensors)
        and not (args[0].is_cuda and torch.cuda.is_current_stream_capturing())
        and not (torch.distributed.is_available() and torch.distributed.is_initialized())
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and not (launch.recorders and threading.get_ident() in launch.recorders)
    )


def _measure_and_store(
    op: Operator, gpu: str, written: str, candidates: tuple[str, ...], args: tuple[Any, ...]
) -> Measurement:
    known = measure(op, candidates, args)
    _known[gpu, op.name, written] = known
    if known.costs:
        tuned_files.add_entry(_file(gpu, op.name), "choices", written, known, _decode)
    replay.forget()
    return known


def contenders(op: Operator, candidates: Sequence[str], args: tuple[Any, ...]) -> list[str]:
    """Return the implementations that accept these inputs and that ``auto`` may use."""
    accepted = []
    for name in candidates:
        implementation = op.implementations[name]
        refuses, avoid = implementation.refuses, implementation.avoid
        if refuses is not None and refuses(*args) is not None:
            continue
        if not implementation.last_resort and (avoid is None or avoid(*args) is None):
            accepted.append(name)
    return accepted


def measure(op: Operator, candidates: Sequence[str], args: tuple[Any, ...]) -> Measurement:
    """Time the implementations in ``contenders`` on these inputs; wrong ones are dropped."""
    if op.prefer is not None and (preferred := op.prefer(tuple(candidates), *args)) is not None:
        candidates = (preferred[0], *[name for name in candidates if name != preferred[0]])
    names = contenders(op, candidates, args)
    if op.standard is not None and "torch" in names:
        standard = op.standard(*args)[0]  # "torch" stands for it
        names = [name for name in names if name != "torch" or standard not in names]
    everyone, dropped = tuple(dict.fromkeys((*names, *candidates))), dict[str, str]()
    if len(names) < 2:
        return Measurement(everyone, {name: Cost(0.0, 0.0) for name in names})
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    try:
        with hooks, on_device(args[0]):  # not those of a checkpoint around the call
            calls = _right_calls(op, names, args, dropped)
            costs = _costs(calls, args[0].device.type, dropped)
    except torch.OutOfMemoryError:
        dropped = dict.fromkeys(names[1:], "memory is short")
        costs = {names[0]: Cost(0.0, 0.0)}
    finally:
        free_memory()
    return Measurement(everyone, costs, dropped)


Call = Callable[..., list[Tensor]]


def _call_of(op: Operator, implementation: Implementation, args: tuple[Any, ...]) -> Call:
    """Return a call on leaves of these inputs: its outputs and, in training, its gradients.

    It takes whether the results are to be compared with those of another implementation.
    """
    leaves = [
        timeable(x.detach()).requires_grad_(x.requires_grad and torch.is_grad_enabled())
        if isinstance(x, Tensor)
        else x
        for x in args
    ]
    wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    upstream: list[Tensor] = []

    def call(compared: bool = False) -> list[Tensor]:
        result = implementation.call(*leaves)
        if compared and op.comparable is not None:
            result = op.comparable(result)
        outputs = [y for y in flat(result) if isinstance(y, Tensor)]
        live = [y for y in outputs if y.requires_grad]
        if not live:
            return outputs
        if not upstream:
            # Contiguous: random numbers follow the memory, whose order implementations choose.
            generator = torch.Generator(live[0].device).manual_seed(0)
            make = {"generator": generator, "device": live[0].device}
            upstream.extend(torch.randn(y.shape, dtype=y.dtype, **make) for y in live)
        gradients = torch.autograd.grad(live, wanted, upstream, allow_unused=True)
        return [y.detach() for y in outputs] + [g for g in gradients if g is not None]

    return call


def _right_calls(
    op: Operator, names: list[str], args: tuple[Any, ...], dropped: dict[str, str]
) -> dict[str, Call]:
    """Return the calls whose results equal those of the first that runs."""
    from kernels.core.check import poisoned

    right: dict[str, Call] = {}
    expected: list[Tensor] | None = None
    tf32 = hardware.product_precision() == "high"
    for name in names:
        call = _call_of(op, op.implementations[name], args)
        try:
            with poisoned():
                results = call(compared=True)
            synchronize()
            why = "" if expected is None else difference(results, expected, tf32)
        except torch.OutOfMemoryError:
            why = "memory is short"
        except Exception as error:  # noqa: BLE001  libraries raise anything; the others go on
            synchronize()  # raises again what has broken the GPU for the process
            lines = str(error).strip().splitlines() or ["no message"]
            why = f"failed: {type(error).__name__}: {lines[0][:200]}"
        if why:
            dropped[name] = why
            continue
        right[name] = call
        expected = results if expected is None else expected
    return right


def _costs(calls: dict[str, Call], device: str, dropped: dict[str, str]) -> dict[str, Cost]:
    """Time the calls in rounds."""
    from kernels.measure.timing import times_us

    device_us: dict[str, list[float]] = {name: [] for name in calls}
    call_us: dict[str, list[float]] = {name: [] for name in calls}
    left = dict(calls)
    for number in range(ROUNDS):
        for name, call in [*left.items()]:
            try:
                if number == 0:
                    call()
                    call()
                call_us[name].append(_loop_us(call))
                # A call that keeps the host busy for long would let the GPU wait inside the events.
                evictions = 1 + int(call_us[name][-1] / 200)
                device_us[name] += times_us(call, CALLS, device, evictions=min(evictions, 16))
            except torch.OutOfMemoryError:
                dropped[name] = "memory is short"
                del left[name]
        best = min((statistics.median(call_us[name]) for name in left), default=0.0)
        best_device = min((statistics.median(device_us[name]) for name in left), default=0.0)
        for name in [*left]:
            slow = statistics.median(call_us[name]) > HOPELESS * best
            if slow and statistics.median(device_us[name]) > HOPELESS * best_device:
                del left[name]
    return {
        name: Cost(round(statistics.median(device_us[name]), 2), round(min(us), 2))
        for name, us in call_us.items()
        if us and device_us[name] and name not in dropped
    }


def _loop_us(call: Call) -> float:
    """Return the time of one call in a loop of calls; the GPU finishes the last one."""

    def loop_us(count: int) -> float:
        synchronize()
        began = time.perf_counter_ns()
        for _ in range(count):
            call()
        synchronize()
        return (time.perf_counter_ns() - began) / 1e3 / count

    return loop_us(int(max(2.0, min(LOOP_US / max(loop_us(1), 1.0), MOST_IN_LOOP))))
