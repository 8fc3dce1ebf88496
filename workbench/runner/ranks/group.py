"""Rank 0's end: starts the peers, tells them what to do, and notices when one ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist

from workbench.exit_reasons import how_ended
from workbench.protocol import Failure
from workbench.runner.ranks.messages import Answer, Failed, Forget, Order, Ready

RANK = "WORKBENCH_RANK"  # the variable that tells a peer which it is
HOST = "127.0.0.1"
START_S = 120.0  # for a peer to import torch and be ready to join
JOIN_S = 60.0  # for ranks that are all ready to meet
TIMEOUT = timedelta(minutes=10)  # of a sum: ranks may compile before it
_COMMAND = (sys.executable, "-P", "-m", "workbench.runner.ranks.peer")
_POLL_S = 0.05
_LAST_WORDS_S = 10.0  # for a peer to end that is hung up on
_LAUNCHING = threading.Lock()
_LAUNCH_S = 5.0  # a call that waits for a peer that is gone is ended by leaving the group
_LOOPBACK = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")

# Its name in torch 2.11.
_set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout


class RankError(RuntimeError):
    """A peer failed; one sentence. ``told`` is what the peer, number ``rank``, said of it, if it
    could.
    """

    def __init__(self, sentence: str, rank: int = 0, told: Failure | None = None) -> None:
        super().__init__(sentence)
        self.rank, self.told = rank, told

    @property
    def lacks_memory(self) -> bool:
        """Whether the peer had too little memory."""
        return self.told is not None and self.told.kind == "out-of-memory"


def rank() -> int:
    """Which rank this process is; 0 where it was not started as a peer."""
    return int(os.environ.get(RANK, "0"))


def join(size: int, device: torch.device, store: dist.Store) -> None:
    """Become a member of the group of ``size`` ranks that meet at ``store``."""
    on_gpu = device.type == "cuda"
    # Torch names a group by how many this process had begun, and ranks of other names never meet;
    # it starts over where a group is left, but not where joining one failed.
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


@contextlib.contextmanager
def launching() -> Iterator[None]:
    """Around calls that NCCL takes as one: they are all made before a group is left.

    Otherwise NCCL would wait for the rest in this thread, and the next group would begin with what
    was meant for the last. Where one of the calls raises, those before it are not waited for.
    """
    with _LAUNCHING:
        try:
            yield
        except BaseException:
            _end_open_call()
            raise


class _Peer:
    """One process, and the thread that reads what it says."""

    def __init__(self, number: int, group: Group, port: int) -> None:
        self.number, self._group = number, group
        self._answers: queue.SimpleQueue[Ready] = queue.SimpleQueue()
        self._encoder = msgspec.json.Encoder()
        self.process = subprocess.Popen(
            [*_COMMAND, str(group.size), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(number, group.device),
            bufsize=0,
        )
        name = f"rank {number}"
        self._listener = threading.Thread(target=self._listen, name=name, daemon=True)
        self._listener.start()

    def tell(self, order: Order) -> None:
        """Send an order; raises ``RankError`` where nobody takes it any more."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(self._encoder.encode(order) + b"\n")
        except OSError:
            self.hear_out()
            self._group.failed(self.number)
            self._group.check()

    def hang_up(self) -> None:
        """No more orders, which ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def hear_out(self) -> None:
        """Wait until it has said what it has to, and has ended."""
        self._listener.join(_LAST_WORDS_S)

    def answered(self) -> Ready | None:
        """The next answer; None if there is none within a moment."""
        with contextlib.suppress(queue.Empty):
            return self._answers.get(timeout=_POLL_S)
        return None

    def _listen(self) -> None:
        assert self.process.stdout is not None
        decoder = msgspec.json.Decoder(Answer)
        for line in self.process.stdout:
            answer = decoder.decode(line)
            if isinstance(answer, Failed):
                self._group.failed(self.number, answer.failure)
            else:
                self._answers.put(answer)
        self._group.ended(self.number, self.process.wait())


class Group:
    """This process and its peers. Raises ``RankError`` where they cannot be started."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.device = size, device
        self._failure: RankError | None = None  # of the peer that failed
        self._hung_up = self._closed = False
        self._lock = threading.Lock()
        for name in _LOOPBACK:
            os.environ[name] = "lo"  # all ranks are on this host, and no other one may connect
        store = _listen_on_loopback(size)
        self._peers = [_Peer(number, self, store.port) for number in range(1, size)]
        try:
            self._await_all()
            with self.together():
                join(size, device, store)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether all ranks are there."""
        return self._failure is None and not self._closed

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks from 1 on."""
        return [peer.process.pid for peer in self._peers]

    def tell(self, order: Order) -> None:
        """Send an order to every peer."""
        self.check()
        for peer in self._peers:
            peer.tell(order)

    def ask(self, order: Order) -> None:
        """Send an order and wait until every peer has done it; raises ``RankError``."""
        self.tell(order)
        self._await_all()

    def check(self) -> None:
        """Raise ``RankError`` if a peer has failed, or all were ended."""
        if (found := self._failure) is not None:  # raised anew: it would keep the frames it passed
            raise RankError(str(found), found.rank, found.told)
        if self._closed:
            raise RankError("the other ranks were ended, because a step failed here")

    def failed(self, number: int, told: Failure | None = None, code: int | None = None) -> None:
        """A peer has ended, which no step survives: whoever waits for its numbers is let go.

        What is said after that is not kept, but for a lack of memory, which is nobody else's doing.
        ``code`` is its process's exit code, where it said nothing.
        """
        how = "ended unasked" if code is None else how_ended(code)
        if code == -signal.SIGKILL:
            how += ", as the system does when memory runs out"
        said = how if told is None else f"ended: {told.sentence}"
        error = RankError(f"rank {number} {said}", number, told)
        with self._lock:
            if self._closed or (self._failure is not None and not error.lacks_memory):
                return
            self._failure = error
        _abort()

    def ended(self, number: int, code: int) -> None:
        """A peer's process has ended with this exit code."""
        if not self._hung_up or code < 0:  # by a signal
            self.failed(number, code=code)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What all ranks do at a time: where it fails here, it may have failed for what had
        happened to a peer, and none can leave it.
        """
        try:
            yield
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """End all peers, some of which are within a step and cannot leave it; raises ``RankError``
        where one of them had failed before.
        """
        self._hung_up = True
        for peer in self._peers:
            peer.hang_up()
        for peer in self._peers:
            peer.hear_out()
        self.close()
        if self._failure is not None:
            self.check()

    def close(self) -> None:
        """End all peers; the group cannot be used again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for peer in self._peers:
            peer.process.kill()
            peer.process.wait()
        _abort()

    def _await_all(self) -> None:
        """Until every peer has answered; raises ``RankError`` with what the first one said."""
        deadline_s = time.monotonic() + START_S
        problems = []
        for peer in self._peers:
            while (answer := peer.answered()) is None:
                self.check()
                if not dist.is_initialized() and time.monotonic() > deadline_s:
                    raise RankError(f"rank {peer.number} did not start in {START_S:.0f} s")
            if (told := answer.problem) is not None:
                problems.append(
                    RankError(f"rank {peer.number}: {told.sentence}", peer.number, told)
                )
        if problems:
            raise next((each for each in problems if each.lacks_memory), problems[0])


_group: Group | None = None


def current() -> Group | None:
    """The group that there is, if any."""
    return _group if _group is not None and _group.alive else None


def of(size: int, device: torch.device) -> Group:
    """The group of so many ranks there, started now unless it is; any other group ends."""
    global _group
    found = current()
    if found is not None and (found.size, found.device.type) == (size, device.type):
        return found
    close()
    _group = Group(size, device)
    return _group


def forget_arms() -> None:
    """Let the peers free what they have built; no arm is entered."""
    if (found := current()) is not None:
        found.tell(Forget())


@atexit.register
def close() -> None:
    """End the peers, if there are any."""
    global _group
    if _group is not None:
        _group.close()
        _group = None


def _listen_on_loopback(size: int) -> dist.Store:
    """Return the store at which the ranks meet; by itself it would listen on all interfaces."""
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        HOST,
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _abort() -> None:
    """Leave the process group without waiting for those that are gone."""
    launched = _LAUNCHING.acquire(timeout=_LAUNCH_S)
    try:
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):
            if not dist.is_initialized():
                return
            if dist.get_backend() == "nccl":
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
    finally:
        if launched:
            _LAUNCHING.release()


def _end_open_call() -> None:
    """Close what ``batch_isend_irecv`` leaves open in NCCL where one of its calls raises."""
    with contextlib.suppress(RuntimeError, ValueError):
        if dist.is_initialized() and dist.get_backend() == "nccl":
            dist.group.WORLD._get_backend(torch.device("cuda"))._group_end()


def _environment(number: int, device: torch.device) -> dict[str, str]:
    """A peer sees its own GPU alone, so that it is the first there as it is here."""
    found = {**os.environ, RANK: str(number), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    if device.type == "cuda":
        seen = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        found["CUDA_VISIBLE_DEVICES"] = seen[number] if seen else str(number)
    return found
