"""``python -m workbench.runner.ranks.peer SIZE PORT``: a rank that does what rank 0 tells it."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from datetime import timedelta
from typing import BinaryIO, NoReturn

import msgspec
import torch
import torch.distributed as dist

from workbench.protocol import Failure
from workbench.runner.config.installed_plugins import register_plugins
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import explain
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics.forward import evaluate
from workbench.runner.ranks.group import HOST, START_S, join
from workbench.runner.ranks.messages import (
    Answer,
    Build,
    Compare,
    Enter,
    Evaluate,
    Failed,
    Forget,
    Leave,
    Order,
    Ready,
    Step,
)
from workbench.runner.variants.variant import Arm, Arms
from workbench.runner.wire import leave, take_standard_streams


class Peer:
    """Builds arms and steps them."""

    def __init__(self, orders: BinaryIO, answers: int) -> None:
        self._answers = answers
        self._encoder = msgspec.json.Encoder()
        self._queue: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._arms = Arms()
        self._entered = contextlib.ExitStack()
        self._arm: Arm | None = None
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self._listener = threading.Thread(target=self._listen, args=(orders,), daemon=True)
        self._listener.start()

    def answer(self, answer: Answer) -> None:
        """Say something to rank 0."""
        os.write(self._answers, self._encoder.encode(answer) + b"\n")

    def serve(self) -> None:
        """Do what is told, for ever: the end of input ends the process."""
        while True:
            self._do(self._queue.get())

    def _listen(self, orders: BinaryIO) -> None:
        decoder = msgspec.json.Decoder(Order)
        for line in orders:
            self._queue.put(decoder.decode(line))
        leave()

    def _do(self, order: Order) -> None:
        match order:
            case Build():
                self.answer(Ready(self._build(order)))
            case Enter():
                assert self._arm is not None
                self._enter(self._arm, order)
            case Step():
                assert self._arm is not None
                self._arm.batches.go_to(order.advances)
                self._arm.step()
            case Evaluate():
                assert self._arm is not None
                self._arm.batches.go_to(order.advances)
                evaluate(order.what, self._arm)
            case Compare():
                assert self._arm is not None and self._arm.divided is not None
                self._arm.divided.compare(self._arm)
            case Leave():
                self._entered.close()
            case Forget():
                self._arm = None
                self._arms.forget_all()

    def _enter(self, arm: Arm, order: Enter) -> None:
        """Be ready for steps; before the first, tune kernels where rank 0 tunes its own."""
        assert arm.divided is not None
        if arm.trainer is not None and arm.trainer.scaler is not None:
            arm.trainer.scaler.load_state_dict(order.scale)
        self._entered.enter_context(arm.entered())
        if not arm.divided.prepared:
            arm.divided.prepared = True
            arm.prepare()

    def _build(self, order: Build) -> Failure | None:
        """What failed, if anything did."""
        try:
            situation = resolve(order.configuration, self.device)
            self._arm = self._arms.get(situation, PhaseTracker(lambda phase: None))
        except Exception as error:  # noqa: BLE001 - rank 0 tells a person, and we stay
            return explain(error)
        return None


def main() -> NoReturn:
    """Join the group and serve until rank 0 ends this process; a failure is told to it."""
    size, port = map(int, sys.argv[1:])
    peer = Peer(*take_standard_streams())
    try:
        store = dist.TCPStore(HOST, port, size, timeout=timedelta(seconds=START_S))
        torch.empty(1, device=peer.device)  # a GPU that is full says so before rank 0 waits there
        register_plugins()
        peer.answer(Ready())
        join(size, peer.device, store)
        peer.serve()
    except Exception as error:  # noqa: BLE001 - the last word of this process
        with contextlib.suppress(OSError):
            peer.answer(Failed(explain(error)))
    leave()


if __name__ == "__main__":
    main()
