"""All ranks of a run, seen from rank 0: it starts or awaits workers and notices when one fails.

Ranks meet as torch's ``env://`` describes. Each worker also opens one connection to rank 0, for
messages. The system closes it when either process ends, however it ends: rank 0 then learns of the
failure at once, and a worker ends with rank 0, also on another host and under an agent that would
keep it. A worker sends a heartbeat, so that a stopped process is noticed, too. The systems of both
hosts probe the connection, so that each notices if the other vanishes.

torch's elastic ``start_processes`` is not used: it would replace the signal handlers of the runner.
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench.runner.distributed import mesh
from workbench.runner.distributed.connection import Connection, Worker
from workbench.runner.distributed.messages import Answer, Forget, Hello, Order, Ready, Step
from workbench.runner.distributed.supervisor import STOPPED_S
from workbench.runner.failures import RankError
from workbench.runner.interfaces import CapturedStep

TOKEN = "WORKBENCH_RANK_TOKEN"  # the variable with the secret of a run
ADDRESS = "WORKBENCH_RANK_0"  # the variable, and the store's key, with HOST:PORT for messages
LOOPBACK = "127.0.0.1"
START_S = 120.0  # time for workers to import torch and connect
JOIN_S = 60.0  # time for ranks that are ready to form their group
TIMEOUT = timedelta(minutes=10)  # limit of a collective: ranks may compile before it
SILENCE_S = 2.5  # silence between steady steps after which a worker counts as lost
LONG_SILENCE_S = 60.0  # the limit while a worker may build or compile
STEADY_STEPS = 3
LEAVE_S = 10.0  # longest time for NCCL to free its communicators
_COMMAND = (sys.executable, "-P", "-m", "workbench.runner.rank_worker")
_POLL_S = 0.05
_HELLO_S = 10.0
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")

# Its name in torch 2.11.
_set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout


def rank() -> int:
    """Return the rank of this process; 0 if it is the only one."""
    return int(os.environ.get("RANK", "0"))


def size_from_outside() -> int:
    """Return how many ranks ``torchrun`` or ``srun`` started; 0 if this runner starts its own."""
    return 0 if TOKEN in os.environ else int(os.environ.get("WORLD_SIZE", "0"))


def join(size: int, device: torch.device, store: dist.Store) -> None:
    """Initialise torch's process group of ``size`` ranks that meet at ``store``."""
    on_gpu = device.type == "cuda"
    # Torch names a group by how many this process began. It starts over when a group is destroyed,
    # but not when joining failed, and ranks that use different names never meet.
    dist.distributed_c10d._world.group_count = 0
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank(),
        world_size=size,
        timeout=timedelta(seconds=JOIN_S),
        device_id=torch.device("cuda", torch.cuda.current_device()) if on_gpu else None,
    )
    _set_timeout(TIMEOUT)


class World:
    """Rank 0 and its workers. Raises ``RankError`` if they cannot be started."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.device = size, device
        self._steady = 0  # steps since something else was ordered
        self._failure: RankError | None = None
        self._closing = self._closed = False
        self._lock = threading.Lock()
        self._token = secrets.token_hex(32)
        self.workers: list[Worker] = []
        self._group: dist.ProcessGroup | None = None  # torch's default group, once joined
        if dist.is_available() and dist.is_initialized():
            raise RankError(
                "new ranks cannot start, because NCCL still waits for ranks that ended; restart "
                "the runner"
            )
        try:
            store = self._connect_workers()
            self.await_answers()
            with self.end_on_error():
                try:
                    join(size, device, store)
                finally:
                    self._group = dist.group.WORLD
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    @property
    def alive(self) -> bool:
        """True if no rank has failed."""
        return self._failure is None and not self._closed

    @property
    def pids(self) -> dict[int, int]:
        """The process of each worker on this host, by rank."""
        return {w.rank: w.process.pid for w in self.workers if w.process is not None}

    def send(self, order: Order) -> None:
        """Send an order to every worker."""
        self.check()
        self._steady = self._steady + 1 if isinstance(order, Step) else 0
        for worker in self.workers:
            worker.send(order)

    def check(self) -> None:
        """Raise ``RankError`` if a worker has failed, or all were ended."""
        if (error := self._failure) is not None:  # a copy: it would keep the frames it passed
            raise error.copy()
        if self._closed:
            raise RankError("the other ranks were ended because a step failed on rank 0")

    def fail(self, error: RankError) -> None:
        """Record that a worker failed, and release this process if it waits in a collective.

        What follows the first failure is its consequence, except that memory ran out.
        """
        with self._lock:
            if self._closed or (self._failure is not None and not error.lacks_memory):
                return
            self._failure = error
        self._leave()

    def ended(self, worker: Worker, code: int | None) -> None:
        """Record that a worker's process ended; ``code`` is None on another host."""
        if self._closing and not ((code or 0) < 0 or worker.is_unreachable):
            return
        self.fail(worker.error_of(code))
        if worker.is_unreachable:
            self._cut_off(worker)

    @contextlib.contextmanager
    def end_on_error(self) -> Iterator[None]:
        """Run an action of all ranks; if it fails on this rank, end the other ranks."""
        try:
            yield
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """End all workers, some of which are inside a step and cannot leave it.

        Raises ``RankError`` if one of them had failed before.
        """
        self._closing = True
        for worker in self.workers:
            worker.hang_up()
        for worker in self.workers:
            worker.drain()
        self.close()
        if self._failure is not None:
            self.check()

    def close(self) -> None:
        """End all workers; the world cannot be used again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for worker in self.workers:
            worker.kill()
        self._leave()

    def _leave(self) -> None:
        """Leave this world's process group, if it has joined one.

        A thread that notices the end of a rank may be late: the group of a later world stays.
        """
        if self._group is not None and self._group is dist.group.WORLD:
            abort()

    def await_answers(self) -> list[Ready]:
        """Wait until every worker has answered; return the answers.

        Raises ``RankError`` for the first problem, a lack of memory before others.
        """
        deadline_s = time.monotonic() + START_S
        problems, answers = [], []
        for worker in self.workers:
            while (answer := worker.answer(_POLL_S)) is None:
                self.check()
                if not dist.is_initialized() and time.monotonic() > deadline_s:
                    raise RankError(f"rank {worker.rank} did not start in {START_S:.0f} s")
            if (failure := answer.problem) is not None:
                problems.append(worker.error(f": {failure.sentence}", failure))
            answers.append(answer)
        if problems:
            raise next((error for error in problems if error.lacks_memory), problems[0])
        return answers

    def _connect_workers(self) -> dist.Store:
        """Start workers on this host, or await those from outside; return the store."""
        if outside := size_from_outside():
            from torch.distributed.rendezvous import rendezvous

            store, *_ = next(rendezvous("env://", 0, outside, timeout=timedelta(seconds=START_S)))
            listener = _listen(os.environ["MASTER_ADDR"])
            store.set(TOKEN, self._token)
            store.set(ADDRESS, f"{os.environ['MASTER_ADDR']}:{listener.getsockname()[1]}")
            self.workers = [Worker(number, self) for number in range(1, outside)]
        else:
            for name in _INTERFACES:
                os.environ[name] = "lo"  # no other host may connect
            store, port = _store_on_loopback(self.size)
            listener = socket.create_server((LOOPBACK, 0))
            for number in range(1, self.size):
                variables = self._environment(number, port, listener.getsockname()[1])
                worker = Worker(number, self)
                worker.process = subprocess.Popen(
                    _COMMAND, stdin=subprocess.DEVNULL, env={**os.environ, **variables}
                )
                self.workers.append(worker)
        with listener:
            self._accept_all(listener)
        return store

    def _accept_all(self, listener: socket.socket) -> None:
        """Connect every worker that knows the secret."""
        deadline_s = time.monotonic() + START_S
        listener.settimeout(_POLL_S)
        missing = {worker.rank: worker for worker in self.workers}
        while missing:
            for worker in missing.values():
                if worker.process is not None and worker.process.poll() is not None:
                    raise worker.error_of(worker.process.returncode)
            if time.monotonic() > deadline_s:
                raise RankError(f"rank {min(missing)} did not start in {START_S:.0f} s")
            with contextlib.suppress(TimeoutError):
                client, _ = listener.accept()
                connection = Connection(client, Answer)
                hello = connection.receive_first(_HELLO_S)
                known = isinstance(hello, Hello) and hmac.compare_digest(hello.token, self._token)
                if known and hello.rank in missing:
                    missing.pop(hello.rank).connect(connection, hello)
                else:
                    connection.close()

    def _environment(self, number: int, store_port: int, port: int) -> dict[str, str]:
        """Return a worker's variables; it sees its own GPU alone, as its first."""
        variables = {
            "RANK": str(number),
            "LOCAL_RANK": "0",  # index among the GPUs that it sees
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(store_port),
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            TOKEN: self._token,
            ADDRESS: f"{LOOPBACK}:{port}",
        }
        if self.device.type == "cuda":
            visible = [g for g in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if g]
            variables["CUDA_VISIBLE_DEVICES"] = visible[number] if visible else str(number)
        return variables

    def _cut_off(self, worker: Worker) -> None:
        """End a failed worker that may not end itself, and all collectives that wait for it."""
        worker.cut_off()
        for other in self.workers:
            other.hang_up()

    def _watch(self) -> None:
        """Report workers that have stopped sending heartbeats, as long as the world exists."""
        while self.alive:
            for worker in self.workers:
                silence_s = time.monotonic() - worker.heard_s
                limit_s = SILENCE_S if self._steady > STEADY_STEPS else LONG_SILENCE_S
                if silence_s > STOPPED_S and worker.is_stopped():
                    worker.report_stopped()
                elif silence_s > limit_s and not self._closing:
                    self.fail(worker.error(f" sent no heartbeat for {limit_s:g} s"))
                else:
                    continue
                self._cut_off(worker)
            time.sleep(_POLL_S)


_world: World | None = None
_captured_steps: weakref.WeakSet[CapturedStep] = weakref.WeakSet()
_leaving = threading.Lock()


def release_first(step: CapturedStep) -> None:
    """Release the graph of a captured step whenever the process group ends."""
    with _leaving:
        _captured_steps.add(step)


def current() -> World | None:
    """Return the world, if there is one."""
    return _world if _world is not None and _world.alive else None


def of(size: int, device: torch.device) -> World:
    """Return the world of ``size`` ranks, started now if it does not exist; any other ends."""
    global _world
    size = size_from_outside() or size
    world = current()
    if world is not None and (world.size, world.device.type) == (size, device.type):
        return world
    if size_from_outside() and _world is not None:
        raise RankError("the externally launched ranks have ended; start the command again")
    close()
    _world = World(size, device)
    return _world


def forget_variants() -> None:
    """Let the workers free what they have built; no variant is entered."""
    if (world := current()) is not None:
        world.send(Forget())


@atexit.register
def close() -> None:
    """End the workers, if there are any."""
    global _world
    if _world is not None:
        _world.close()
        if not size_from_outside():
            _world = None


def abort() -> None:
    """Leave the process group without waiting for ranks that are gone.

    NCCL ends its kernels, then waits until all graphs with its collectives are freed. CUDA frees a
    graph that runs after its kernels have ended. So both are done at the same time.
    """
    with _leaving:  # any thread may notice a failure, but only one may leave
        mesh.forget()
        captured = [step for step in _captured_steps if step.graph is not None]
        if not captured:
            _leave_group()
            return
        thread = threading.Thread(target=_leave_group, name="leaving", daemon=True)
        thread.start()
        for step in captured:
            step.release()
        thread.join(LEAVE_S)


def _leave_group() -> None:
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):
        if not dist.is_initialized():
            return
        if dist.get_backend() == "nccl":
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()


def _store_on_loopback(size: int) -> tuple[dist.TCPStore, int]:
    """Return the store for the rendezvous, and its port; it listens only on loopback."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        LOOPBACK,
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, port


def _listen(host: str) -> socket.socket:
    """Listen at the address where other hosts reach rank 0, or at all if it is not our own."""
    try:
        return socket.create_server((host, 0))
    except OSError:
        return socket.create_server(("", 0))
