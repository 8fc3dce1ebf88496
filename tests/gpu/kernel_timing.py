"""The timing half of check_kernels: every case x implementation x direction of one operator."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from kernels import Case, Operator, Work
from kernels._check import Exact, as_tuple
from kernels._peers import peers
from kernels._timing import ceilings, gpu_us, host_us, kernel_us

DTYPE = torch.bfloat16


def measure_operator(op: Operator, device: torch.device) -> dict[str, Any]:
    """Times of one operator; an implementation that is wrong on a case is not timed there."""
    limits = ceilings(str(device))
    part: dict[str, Any] = {
        "copy_gb_per_s": limits.bytes_per_s / 1e9,
        "matmul_tflop_per_s": limits.flops_per_s / 1e12,
        "rows": [],
        "failures": [],
        "host_us": {},
    }
    timed: list[tuple[dict[str, Any], str, Callable[[], Any]]] = []
    for case in op.cases:
        if case.bench:
            _measure_case(op, case, device, part, timed)
    _host_times(op, device, part)
    _kernel_times(timed)  # last: a process that has profiled is slower for a while
    return part


def _measure_case(
    op: Operator, case: Case, device: torch.device, part: dict[str, Any], timed: list[Any]
) -> None:
    inputs = op.inputs(case, device, DTYPE, 0)
    cost = op.cost(**inputs)
    try:
        exact = Exact(op, inputs, large=True)
    except torch.OutOfMemoryError:
        part["failures"].append(f"{case.name}: the reference does not fit in memory")
        return
    for name, call in _subjects(op, inputs, part).items():
        row: dict[str, Any] = {"case": case.name, "impl": name}
        part["rows"].append(row)
        began = time.perf_counter()
        try:
            wrong = [str(c) for c in exact.compare(call, poison=False) if not c.right]
            torch.cuda.synchronize()
            if wrong and name in op.implementations:
                part["failures"].append(f"{case.name} {name} is wrong, not timed: {wrong[0]}")
                row["forward"] = {"us": None, "why": wrong[0]}
                continue
            row["wrong"] = wrong  # a peer's: told, and timed all the same
            row["first_s"] = time.perf_counter() - began
            _time(op, call, inputs, row, timed, cost.forward, cost.backward)
        except Exception:  # noqa: BLE001  the rest is still to be timed
            part["failures"].append(f"{case.name} {name}: {traceback.format_exc(limit=-4)}")
            row["forward"] = {"us": None, "why": "failed"}
            torch.cuda.empty_cache()


def _subjects(op: Operator, inputs: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Implementations, peers, and the reference compiled, as functions of the inputs."""
    arguments = [
        x.detach().requires_grad_() if n in op.gradients and x is not None else x
        for n, x in inputs.items()
    ]
    subjects: dict[str, Any] = {}
    for name, implementation in op.implementations.items():
        why = implementation.missing("cuda")
        if why is None and implementation.refuses:
            why = implementation.refuses(*arguments)
        if why is None:
            subjects[name] = implementation.call
    if op.name == "attention":
        if inputs["q_BHSD"].shape[2] * inputs["k_BGTD"].shape[2] > 1 << 25:
            subjects.pop("manual", None), subjects.pop("sdpa_math", None)
    else:
        torch._dynamo.reset()
        subjects["torch.compile"] = torch.compile(op.reference, fullgraph=True, dynamic=False)
    for name, peer in peers(op.name).items():
        try:
            if peer(*arguments) is not NotImplemented:
                subjects[name] = peer
        except Exception:  # noqa: BLE001  a peer that is broken here is none
            part["failures"].append(f"peer {name}: {traceback.format_exc(limit=-2)}")
    return subjects


def _time(
    op: Operator,
    call: Callable[..., Any],
    inputs: dict[str, Any],
    row: dict[str, Any],
    timed: list[Any],
    forward: Work,
    backward: Work | None,
) -> None:
    limits = ceilings(str(next(iter(inputs.values())).device))
    plain = list(inputs.values())

    def run_forward() -> Any:
        with torch.no_grad():
            return call(*plain)

    row["forward"] = {"us": gpu_us(run_forward), "floor_us": limits.floor_us(forward)}
    timed.append((row, "forward", run_forward))
    names = [n for n in op.gradients if inputs.get(n) is not None]
    if backward is None or not names:
        return
    leaves = {n: inputs[n].detach().requires_grad_() for n in names}
    outputs = as_tuple(call(*(leaves.get(n, x) for n, x in inputs.items())))
    live = [y for y in outputs if y.requires_grad]
    if not live:
        return
    upstream = [torch.randn_like(y) for y in live]

    def run_backward() -> Any:
        return torch.autograd.grad(live, list(leaves.values()), upstream, retain_graph=True)

    row["backward"] = {"us": gpu_us(run_backward), "floor_us": limits.floor_us(backward)}
    timed.append((row, "backward", run_backward))


def _kernel_times(timed: list[tuple[dict[str, Any], str, Callable[[], Any]]]) -> None:
    for row, direction, call in timed:
        with contextlib.suppress(Exception):  # CUPTI may be taken or forbidden: then no column
            row[direction]["kernel_us"] = kernel_us(call, repeats=10)


def _host_times(op: Operator, device: torch.device, part: dict[str, Any]) -> None:
    """Host time of the public function, on inputs too small to keep the GPU busy."""
    case = next(c for c in op.cases if not c.bench)
    inputs = op.inputs(case, device, DTYPE, 0)
    leaves = {
        n: x.detach().requires_grad_() if n in op.gradients and x is not None else x
        for n, x in inputs.items()
    }
    try:
        with torch.no_grad():
            part["host_us"]["without gradient"] = host_us(lambda: op.function(**inputs))
        part["host_us"]["with gradient"] = host_us(lambda: op.function(**leaves))
    except Exception:  # noqa: BLE001
        part["failures"].append(f"host time: {traceback.format_exc(limit=-4)}")
