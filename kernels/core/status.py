"""Status of the operators: what can run here, what is chosen, what ran."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.core.dispatch import chosen, reasons, usage
from kernels.core.operator import OPS, Operator


@dataclass(frozen=True)
class Status:
    """Status of one operator on one type of device.

    ``choice`` is the active choice and ``active`` the implementation that it leads to. With auto
    that is the one for inputs that it accepts; None if none can run. ``unavailable`` maps each
    implementation that cannot run to the reason. ``calls`` counts since the last reset, ``reason``
    says why the last one was used.
    """

    operator: str
    device_type: str
    choice: str
    active: str | None
    available: tuple[str, ...]
    unavailable: dict[str, str]
    calls: dict[str, int]
    reason: str

    def __str__(self) -> str:
        lines = [f"{self.operator}: {self.active or 'nothing can run'} (requested: {self.choice})"]
        lines += [f"    {name}: {why}" for name, why in self.unavailable.items()]
        return "\n".join(lines)


def status(device_type: str | None = None) -> dict[str, Status]:
    """Return the status of every operator, by default on the GPU if there is one."""
    resolved_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return {name: _status(op, resolved_type) for name, op in OPS.items()}


def _status(op: Operator, device_type: str) -> Status:
    unavailable = {}
    for name, implementation in op.implementations.items():
        why = implementation.missing(device_type)
        if why is not None:
            unavailable[name] = why
    available = tuple(name for name in op.implementations if name not in unavailable)
    choice = chosen()[op.name]
    if choice == "auto":
        active = next((n for n in available if op.implementations[n].avoid is None), None)
    else:
        active = choice if choice in available else None
    return Status(
        operator=op.name,
        device_type=device_type,
        choice=choice,
        active=active,
        available=available,
        unavailable=unavailable,
        calls=usage().get(op.name, {}),
        reason=reasons().get(op.name, ("", ""))[1],
    )
