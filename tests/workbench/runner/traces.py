"""Chrome traces as torch.profiler writes them for a GPU, a few events long, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 200


class Written:
    """Collects events; every launch gets its kernel, ``after`` microseconds later."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        self._device_free = 0.0

    def span(self, name, start, stop, *, thread=MAIN, category="cpu_op", **arguments) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start,
             "dur": stop - start, "args": arguments}
        )  # fmt: skip

    def mark(self, name, start, stop, **more) -> None:
        self.span(name, start, stop, category="user_annotation", **more)

    def op(self, name, start, stop, sequence=None, **more) -> None:
        if sequence is not None:
            more |= {"Sequence number": sequence, "Fwd thread id": 0}
        self.span(name, start, stop, **more)

    def node(self, name, start, stop, sequence=None, **more) -> None:
        arguments = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": 1}
        name = f"autograd::engine::evaluate_function: {name}"
        self.span(name, start, stop, thread=AUTOGRAD, **arguments, **more)

    def kernel(self, name, at, us, *, thread=MAIN, call="cudaLaunchKernel", start=None) -> None:
        """Record a launch at ``at`` on the host, and its kernel once the device is free."""
        category = "cuda_driver" if call.startswith("cu") and call[2].isupper() else "cuda_runtime"
        self._correlation += 1
        self.span(call, at, at + 1, thread=thread, category=category,
                  correlation=self._correlation)  # fmt: skip
        self.replayed(name, max(self._device_free, at + 2) if start is None else start, us)

    def replayed(self, name, start, us) -> None:
        """One more kernel of the last launch."""
        self._device_free = start + us
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": us,
             "args": {"correlation": self._correlation, "stream": 7}}
        )  # fmt: skip

    def memory(self, at, address, size, *, allocated=0, reserved=0, device_type=1) -> None:
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "tid": MAIN, "ts": at,
             "args": {"Addr": address, "Bytes": size, "Device Type": device_type,
                      "Total Allocated": allocated, "Total Reserved": reserved}}
        )  # fmt: skip

    def save(self, path: Path) -> Path:
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": self.events}))
        return path
