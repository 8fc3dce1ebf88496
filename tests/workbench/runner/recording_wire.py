"""A wire that only records: for runs that are executed in the test's own process."""

from __future__ import annotations

import threading

from workbench import protocol


class RecordingWire:
    """Takes what is sent; ``commands`` are what waits to be taken."""

    def __init__(self) -> None:
        self.sent: list[protocol.Message] = []
        self.commands: list[protocol.Command] = []
        self.cancelled = threading.Event()

    @property
    def waiting(self) -> bool:
        return bool(self.commands)

    def send(self, message: protocol.Message) -> None:
        self.sent.append(message)

    def seconds(self, now_ns: int = 0) -> float:
        return 1.0 + now_ns * 1e-9

    def pending(self) -> protocol.Command | None:
        return self.commands.pop(0) if self.commands else None
