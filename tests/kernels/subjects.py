"""Subjects of the generic tests on this machine: operators, cases, implementations, dtypes.

In the main process of a machine without a GPU these are the implementations that need none. Under
TRITON_INTERPRET=1 (set by test_interpreted_kernels.py for its child) they are the Triton ones,
which are left out elsewhere on the CPU; on a GPU all.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernels import OPS, Case, Operator
from kernels.core.operator import no_inputs
from kernels.core.triton_helpers import INTERPRETED
from kernels.measure.bench import leaves_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
HALVES = (torch.float16,) if INTERPRETED else (torch.float16, torch.bfloat16)  # see TRAPS: BF16
DTYPES = (torch.float32, *HALVES)
ONLY = os.environ.get("KERNELS_ONLY", "").split()
OPERATORS = {name: op for name, op in OPS.items() if not ONLY or name in ONLY}


def pretend_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch.compiler.is_compiling() return True during a test."""
    # Dynamo recognizes the function by its identity when it is imported: a replaced one would
    # break the tracing of all later tests.
    import torch._dynamo

    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def implementations(op: Operator) -> list[str]:
    names = [name for name in op.implementations if op.unavailable(name, DEVICE.type) is None]
    if INTERPRETED:
        return [name for name in names if name.startswith("triton")]
    return names


def cases() -> list[Any]:
    """Return operator, small case and dtype of each test."""
    return list(_cases())


def _cases() -> Iterator[Any]:
    for name, op in OPERATORS.items():
        if not implementations(op):
            continue
        for case in op.cases:
            if not case.bench:
                for dtype in DTYPES:
                    title = f"{name}-{case.name.replace(' ', ',')}-{str(dtype)[6:]}"
                    yield pytest.param(op, case, dtype, id=title)


def operators() -> list[Any]:
    return [pytest.param(op, id=name) for name, op in OPERATORS.items() if implementations(op)]


def fitting(op: Operator, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the implementations that accept these inputs, by name."""
    arguments = leaves_of(op, inputs).values()
    return {
        name: op.implementations[name]
        for name in implementations(op)
        if not (refuses := op.implementations[name].refuses) or refuses(*arguments) is None
    }


def _writes(op: Operator, case: Case) -> bool:
    """Return True if the call writes into an input, and Triton's kernel accepts it."""
    if op.written is no_inputs:
        return False
    inputs = op.inputs(case, torch.device("cpu"), torch.float32, 0).values()
    refuses = op.implementations["triton"].refuses
    return bool(op.written(*inputs)) and refuses is not None and not refuses(*inputs)


WRITING = [
    pytest.param(op, case, id=f"{name}-{case.name}")
    for name, op in OPS.items()
    for case in op.cases
    if not case.bench and _writes(op, case)
]
