"""Time that the host spends on one call of an operator.

Host cost is the wall time of the call on the host: launches are enqueued, and nothing waits for the
GPU. Inputs are small, so that the GPU keeps up. Part of the cost is spent in launches: in Triton's
launcher and the CUDA driver below it, whoever calls them. The rest is the Python around the
launches: choice of the implementation, checks, autograd, memory, and preparing the launch.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.core.check import as_tuple
from kernels.core.dispatch import using
from kernels.core.launch import launches_timed
from kernels.core.operator import Inputs, Operator
from kernels.measure.bench import BOTH, leaves_of

RECORDED = "forward, recorded"  # with a backward pass to come; "forward" is with gradients off


@dataclass(frozen=True)
class HostCost:
    """Median microseconds per call: in total, and outside Triton's launches."""

    call_us: float
    outside_us: float


def host_costs(
    op: Operator, device: torch.device, dtype: torch.dtype, only: Iterable[str] | None = None
) -> dict[str, dict[str, HostCost]]:
    """Measure the public function by implementation and direction, where it can run.

    Directions are those of ``Row``, and ``RECORDED``. "backward" includes autograd's engine.
    ``only``: the implementations to measure; by default all. One that fails is left out: its
    ``Row`` reports why.
    """
    costs_by_implementation = {}
    for name in op.implementations if only is None else only:
        inputs = small_inputs(op, name, device, dtype)
        if inputs is not None:
            with contextlib.suppress(Exception), using(**{op.name: name}):
                costs = {}
                for direction, call in calls_of(op, inputs).items():
                    with recording(direction):
                        costs[direction] = host_cost(call, device.type)
                costs_by_implementation[name] = costs
    return costs_by_implementation


def host_cost(call: Callable[[], Any], device_type: str = "cuda", *, calls: int = 300) -> HostCost:
    """Measure one call over five rounds; timing launches separately adds 0.2 us to each."""
    synchronize = torch.cuda.synchronize if device_type == "cuda" else lambda: None
    count = calls // 5

    def round_us() -> float:
        began = time.perf_counter_ns()
        for _ in range(count):
            call()
        spent_ns = time.perf_counter_ns() - began
        synchronize()
        return spent_ns / count / 1e3

    for _ in range(10):
        call()
    synchronize()
    totals = [round_us() for _ in range(5)]
    outside = []
    with launches_timed() as spent_ns:
        for _ in range(5):
            spent_ns.clear()
            total_us = round_us()
            outside.append(total_us - sum(spent_ns) / count / 1e3)
    return HostCost(statistics.median(totals), statistics.median(outside))


def recording(direction: str) -> AbstractContextManager[Any]:
    """Switch gradients off or on for that direction; a model switches once for many calls."""
    return torch.set_grad_enabled(direction != "forward")


def small_inputs(
    op: Operator, name: str, device: torch.device, dtype: torch.dtype
) -> Inputs | None:
    """Return the first small, non-empty inputs that the implementation accepts; None if none."""
    implementation = op.implementations[name]
    if implementation.missing(device.type) is not None:
        return None
    for case in op.cases:
        inputs = op.inputs(case, device, dtype, 0) if not case.bench else {}
        tensors = [x for x in inputs.values() if isinstance(x, Tensor)]
        refuses = implementation.refuses
        if (
            tensors
            and all(x.numel() for x in tensors)
            and not (refuses and refuses(*leaves_of(op, inputs).values()))
        ):
            return inputs
    return None


def calls_of(op: Operator, inputs: Inputs) -> dict[str, Callable[[], Any]]:
    """Return the call to time by direction, to be made inside its ``recording``."""
    leaves = leaves_of(op, inputs)
    trainable = [x for x in leaves.values() if isinstance(x, Tensor) and x.requires_grad]

    def forward() -> Any:
        return op.function(**inputs)

    def recorded() -> Any:
        return op.function(**leaves)

    calls: dict[str, Callable[[], Any]] = {"forward": forward}
    live = [y for y in as_tuple(recorded()) if y.requires_grad] if trainable else []
    if not live:
        return calls
    upstream = [torch.ones_like(y) for y in live]

    def backward() -> Any:
        return torch.autograd.grad(live, trainable, upstream, retain_graph=True)

    def both() -> Any:
        outputs = [y for y in as_tuple(recorded()) if y.requires_grad]
        return torch.autograd.grad(outputs, trainable, upstream)

    if op.gradients_in_forward:
        return calls | {RECORDED: recorded, BOTH: both}
    return calls | {RECORDED: recorded, "backward": backward}
