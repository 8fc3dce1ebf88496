"""``python -m workbench.runner.rank_worker``: a rank that follows rank 0's messages."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

import torch
from torch.distributed.rendezvous import rendezvous

from workbench import descendants
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.installed_plugins import register_plugins
from workbench.runner.config.resolve import resolve
from workbench.runner.distributed import mesh as meshes
from workbench.runner.distributed.connection import Connection, own_addresses
from workbench.runner.distributed.mesh import Layout
from workbench.runner.distributed.messages import (
    Alive,
    Arrange,
    BuildVariant,
    Compare,
    Enter,
    Evaluate,
    Failed,
    Forget,
    Hello,
    Leave,
    Order,
    Ready,
    Record,
    Step,
)
from workbench.runner.distributed.world import ADDRESS, START_S, TOKEN, join, rank
from workbench.runner.environment import host
from workbench.runner.failures import explain
from workbench.runner.instruments.memory import free_bytes
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.interfaces import Situation
from workbench.runner.model_state.run_state import restored_state
from workbench.runner.numerics.forward import evaluate
from workbench.runner.toggles._ranks import layout_of
from workbench.runner.variants.variant import Variant
from workbench.runner.wire import leave

BEAT_S = 0.5


class WorkerLoop:
    """Builds variants and steps them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._variants = VariantCache()
        self._entered = contextlib.ExitStack()
        self._variant: Variant | None = None
        self._restore: Callable[[], None] | None = None  # the state of a model that is checked
        self.steps = 0  # number of the step that was begun last
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        for target in (self._listen, self._beat):
            threading.Thread(target=target, daemon=True).start()

    def serve(self) -> None:
        """Handle orders until rank 0 ends the connection, which ends the process."""
        while True:
            self.handle(self._orders.get())

    def handle(self, order: Order) -> None:
        """Carry out one order."""
        if isinstance(order, Arrange):
            meshes.of(Layout(*order.layout), self.device)
            return
        if isinstance(order, BuildVariant):
            self._connection.send(self._build(order))
            return
        if isinstance(order, Forget):
            self._variant = None
            self._variants.forget_all()
            return
        self.steps += isinstance(order, Step)
        variant = self._variant
        if variant is None:
            return  # fewer ranks than there are step
        assert variant.divided is not None
        match order:
            case Enter():
                self._enter(variant, order)
            case Step():
                variant.batches.go_to(order.advances)
                variant.divided.step(captured=order.captured)
            case Evaluate():
                variant.batches.go_to(order.advances)
                evaluate(order.name, variant)
                if self._restore is not None:
                    self._restore()
            case Compare():
                variant.divided.compare(variant)
            case Record():
                variant.divided.record(order.phase, order.steps)
            case Leave():
                self._entered.close()
                self._restore = None

    def _listen(self) -> None:
        for order in self._connection.messages():
            self._orders.put(order)
        # An agent waits for all hosts after success, for minutes, and not after a failure.
        leave(code=int(self._connection.is_unreachable))

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._connection.send(Alive())
                time.sleep(BEAT_S)

    def _enter(self, variant: Variant, order: Enter) -> None:
        """Prepare for steps; tune kernels before the first, as rank 0 does."""
        assert variant.divided is not None
        if variant.trainer is not None and variant.trainer.scaler is not None:
            variant.trainer.scaler.load_state_dict(order.scale)
        variant.divided.version = order.version
        variant.divided.is_set_up = not order.prepare
        if order.restores:
            room = free_bytes(self.device)
            state = restored_state(variant.model, self.device, room)
            self._restore = self._entered.enter_context(state)
        self._entered.enter_context(variant.entered())
        if not variant.divided.has_prepared:
            variant.divided.has_prepared = True
            variant.prepare()

    def _build(self, order: BuildVariant) -> Ready:
        """Build a variant, or nothing if its ranks do not include this one."""
        self._variant = None
        try:
            situation = resolve(order.configuration, self.device)
            if layout_of(situation).ranks > rank():
                self._variant = self._get(situation, order)
        except Exception as error:  # noqa: BLE001 - rank 0 reports it, and this worker goes on
            return Ready(explain(error))
        divided = None if self._variant is None else self._variant.divided
        if divided is None:
            return Ready(prepared=True)
        return Ready(version=divided.weights.version, prepared=divided.is_set_up)

    def _get(self, situation: Situation, order: BuildVariant) -> Variant:
        """Return the variant that belongs to rank 0's, built now if it does not exist."""
        phases = PhaseTracker(lambda phase: None)
        variant = self._variants.get(situation, phases, order.copy)
        if variant.divided is not None and variant.divided.variant_id not in (0, order.variant):
            del variant
            self._variants.forget(situation, order.copy)
            variant = self._variants.get(situation, phases, order.copy)
        if variant.divided is not None:
            variant.divided.variant_id = order.variant
        return variant


def main() -> NoReturn:
    """Join the ranks and follow rank 0 until it ends this process; report a failure to it."""
    local = TOKEN in os.environ  # otherwise an agent started this worker, and it sees all GPUs
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    if not local:
        descendants.end_with_parent()
        visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        number = int(os.environ.get("LOCAL_RANK", "0"))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number] if visible else str(number)
        os.environ["LOCAL_RANK"] = "0"
    size, limit = int(os.environ["WORLD_SIZE"]), timedelta(seconds=START_S)
    store, *_ = next(rendezvous("env://", rank(), size, timeout=limit))
    token = os.environ[TOKEN] if local else store.get(TOKEN).decode()
    address = os.environ[ADDRESS] if local else store.get(ADDRESS).decode()
    name, _, port = address.rpartition(":")
    connection = Connection(socket.create_connection((name, int(port))), Order)
    if not local:
        connection.hand_over()
    hello = Hello(rank=rank(), token=token, host=host(), addresses=own_addresses(), pid=os.getpid())
    connection.send(hello)
    loop = WorkerLoop(connection)
    try:
        torch.empty(1, device=loop.device)  # a GPU that is full is reported before others wait
        register_plugins()
        connection.send(Ready())
        join(size, loop.device, store)
        loop.serve()
    except Exception as error:  # noqa: BLE001 - the last message of this process
        with contextlib.suppress(OSError):
            connection.send(Failed(explain(error), loop.steps))
    leave()


if __name__ == "__main__":
    main()
