"""Timing of an operator's implementations against each other, on the inputs of one call.

Every implementation that accepts the inputs and that ``auto`` does not avoid is compared with the
first of them and timed. Two numbers come out. ``device_us`` is GPU time with cold caches, launches
hidden: the cost in a captured or compiled step. ``call_us`` is the time of a call in a loop of
calls, where Python and launches count: the cost in any other step is the larger of both. In
training both include the backward pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernels import hardware
from kernels.core.check import poisoned
from kernels.core.operator import Implementation, Operator
from kernels.core.triton_helpers import on_device
from kernels.core.tuning import difference, flat, free_memory, synchronize, timeable
from kernels.measure.timing import evictions_to_hide, times_us, warm_up

MEASURED = "measured"  # prefix of the reason for an implementation that was the fastest
NOT_TIMED = "not timed"  # no other implementation could be compared
NO_MEMORY = "not enough memory"  # the reason why an implementation was dropped
GAIN = 0.98  # times the first implementation's cost: a closer result may be noise
ROUNDS, CALLS = 3, 5  # interleaved single calls with cold caches
LOOP_US, MOST_IN_LOOP = 3000.0, 20  # duration and most calls of a loop
HOPELESS = 5.0  # times the fastest so far: one round is enough


@dataclass(frozen=True)
class Cost:
    """Microseconds of one call: GPU time with cold caches, and time in a loop of calls."""

    device_us: float
    call_us: float

    @property
    def is_timed(self) -> bool:
        """Return False if there was nothing to compare with, or no memory for it."""
        return self.device_us > 0

    def of_step(self, captured: bool) -> float:
        """Return the time that a call adds to a step; ``captured``: or compiled."""
        return self.device_us if captured else max(self.device_us, self.call_us)


_UNTIMED = Cost(0.0, 0.0)


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
        dropped = "".join(f"; {name} dropped: {why}" for name, why in self.dropped.items())
        untimed = [name for name, cost in self.costs.items() if not cost.is_timed]
        if untimed:
            return f"{NOT_TIMED}: {untimed[0]} is the only choice{dropped}"
        parts = [
            f"{name} {self.costs[name].of_step(captured) / 1e3:.3f}"
            for name in sorted(self.costs, key=lambda n: self.costs[n].of_step(captured))
        ]
        if parts:
            parts[0] += " ms"
        timed_quantity = "GPU time" if captured else "GPU and host time"
        return f"{MEASURED}, {timed_quantity} of a call: {', '.join(parts)}{dropped}"


def contenders(op: Operator, candidates: Sequence[str], args: tuple[Any, ...]) -> list[str]:
    """Return the implementations that accept these inputs and that ``auto`` may use.

    "torch" is left out if the implementation that it means is among them.
    """
    accepted = []
    for name in candidates:
        implementation = op.implementations[name]
        refuses, avoid = implementation.refuses, implementation.avoid
        if refuses is not None and refuses(*args) is not None:
            continue
        if not implementation.last_resort and (avoid is None or avoid(*args) is None):
            accepted.append(name)
    if op.standard is not None and "torch" in accepted and op.standard(*args)[0] in accepted:
        accepted.remove("torch")
    return accepted


def measure(op: Operator, candidates: Sequence[str], args: tuple[Any, ...]) -> Measurement:
    """Time the implementations in ``contenders`` on these inputs; wrong ones are dropped."""
    if op.prefer is not None and (preferred := op.prefer(tuple(candidates), *args)) is not None:
        candidates = (preferred[0], *[name for name in candidates if name != preferred[0]])
    names = contenders(op, candidates, args)
    everyone, dropped = tuple(dict.fromkeys((*names, *candidates))), dict[str, str]()
    if len(names) < 2:
        return Measurement(everyone, dict.fromkeys(names, _UNTIMED))
    # Not those of a checkpoint around the call. An output that a failed call has saved itself, with
    # its graph, would never be freed.
    hooks = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda x: x)
    try:
        with hooks, on_device(args[0]):
            calls = _right_calls(op, names, args, dropped)
            costs = _costs(calls, args[0].device.type, dropped)
    except torch.OutOfMemoryError:
        dropped = dict.fromkeys(names[1:], NO_MEMORY)
        costs = {names[0]: _UNTIMED}
    finally:
        free_memory()
    return Measurement(everyone, costs, dropped)


Call = Callable[..., list[Tensor]]


def _call_of(op: Operator, implementation: Implementation, args: tuple[Any, ...]) -> Call:
    """Return a call on leaves of these inputs: its outputs and, in training, its gradients.

    It takes whether the results are to be compared with those of another implementation. These
    include the tensors that it writes into, which are copies of the inputs.
    """
    leaves: Sequence[Any] = [
        timeable(x.detach()).requires_grad_(x.requires_grad and torch.is_grad_enabled())
        if isinstance(x, Tensor)
        else x
        for x in args
    ]
    leaves = op.with_copies(leaves)
    written = op.written_tensors(leaves).values()
    trainable = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    upstream: list[Tensor] = []

    def call(compared: bool = False) -> list[Tensor]:
        result = implementation.call(*leaves)
        if compared and op.comparable is not None:
            result = op.comparable(result)
        outputs = [y for y in (*flat(result), *written) if isinstance(y, Tensor)]
        live = [y for y in outputs if y.requires_grad]
        if not live:
            return outputs
        if not upstream:
            # Contiguous: random numbers follow the memory, whose order implementations choose.
            generator = torch.Generator(live[0].device).manual_seed(0)
            make = {"generator": generator, "device": live[0].device}
            upstream.extend(torch.randn(y.shape, dtype=y.dtype, **make) for y in live)
        gradients = torch.autograd.grad(live, trainable, upstream, allow_unused=True)
        return [y.detach() for y in outputs] + [g for g in gradients if g is not None]

    return call


def _right_calls(
    op: Operator, names: list[str], args: tuple[Any, ...], dropped: dict[str, str]
) -> dict[str, Call]:
    """Return the calls whose results equal those of the first that runs."""
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
            why = NO_MEMORY
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
    device_us: dict[str, list[float]] = {name: [] for name in calls}
    call_us: dict[str, list[float]] = {name: [] for name in calls}
    evictions: dict[str, int] = {}
    left = dict(calls)
    for number in range(ROUNDS):
        for name, call in [*left.items()]:
            try:
                if number == 0:
                    warm_up(call)
                    evictions[name] = evictions_to_hide(call, device)
                call_us[name].append(_loop_us(call))
                device_us[name] += times_us(call, CALLS, device, evictions[name])
            except torch.OutOfMemoryError:
                dropped[name] = NO_MEMORY
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
