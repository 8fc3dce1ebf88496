"""Batches that a data loader of PyTorch reads from a text file while the model steps."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workbench.runner.failures import Mistake

WORKERS = 2  # processes of a loader that reads ahead
_WAITS = 100  # newest waits, of which the median is taken
_PREFETCHED = 2  # batches that each of them reads ahead
_PR_SET_PDEATHSIG = 1  # Linux: the signal that a process gets when its parent ends


class Loading(NamedTuple):
    """Settings of a loader: its worker processes (0: none), and whether memory is pinned."""

    workers: int
    pinned: bool


class TextWindows(Dataset[tuple[int, Tensor]]):
    """Batches of bytes of a file: item ``i`` has those that begin at ``starts_RB[i]``."""

    def __init__(self, path: Path, starts_RB: Tensor, length: int, vocabulary: int) -> None:
        self._path, self._starts_RB = path, starts_RB
        self._length, self._vocabulary = length, vocabulary

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        """Read one batch (B, length), int64; return it with the process that read it.

        Raises ``OSError`` and ``ValueError``.
        """
        rows = []
        with self._path.open("rb") as file:
            for start in self._starts_RB[index].tolist():
                file.seek(start)
                read = file.read(self._length)
                if len(read) < self._length:
                    raise ValueError(f"data: {self._path} has become shorter during the run")
                rows.append(torch.frombuffer(bytearray(read), dtype=torch.uint8))
        batch = torch.stack(rows).to(torch.int64)
        if int(batch.max()) >= self._vocabulary:  # a GPU would end the process
            raise ValueError(f"data: {self._path} has changed and has bytes beyond the vocabulary")
        return os.getpid(), batch


class LoadedBatches:
    """A ring of batches that a ``DataLoader`` reads; ``ring[i]`` waits for batch ``i``.

    Worker processes read ahead; without any, ``ring[i]`` itself reads. ``readers`` are the
    processes that have read batches, and ``is_pinned`` describes the last batch.
    """

    def __init__(self, windows: TextWindows, count: int, loading: Loading) -> None:
        self.read = 0  # batches
        self.readers: set[int] = set()
        self.is_pinned = False
        self._waits_s: deque[float] = deque(maxlen=_WAITS)
        self._count, self._next = count, 0
        self._loader = DataLoader(
            windows,
            batch_size=None,
            sampler=itertools.cycle(range(count)),
            num_workers=loading.workers,
            pin_memory=loading.pinned,
            prefetch_factor=_PREFETCHED if loading.workers else None,
            worker_init_fn=_end_with_the_runner if loading.workers else None,
            generator=torch.Generator(),  # and not that of the run, whose state would change
        )
        self._iterator: Iterator[tuple[int, Tensor]] | None = None

    def __getitem__(self, index: int) -> Tensor:
        """Return batch ``index`` (B, length), int64; batches before it are read and dropped.

        Raises ``Mistake`` for a file that can no longer be read.
        """
        began = time.perf_counter()
        if self._iterator is None:
            self._iterator = iter(self._loader)
        while True:
            try:
                (reader, batch), number = next(self._iterator), self._next
            except (OSError, ValueError) as error:  # a worker's error: its last line is the message
                last = str(error).strip().splitlines()[-1]
                raise Mistake(last[max(0, last.find("data: ")) :]) from None
            self._next = (self._next + 1) % self._count
            self.read += 1
            self.readers.add(reader)
            self.is_pinned = batch.is_pinned()
            if number == index:
                self._waits_s.append(time.perf_counter() - began)
                return batch

    @property
    def wait_ms(self) -> float:
        """The median wait for one of the last batches; NaN before the first."""
        return 1e3 * statistics.median(self._waits_s) if self._waits_s else math.nan


def _end_with_the_runner(worker: int) -> None:
    """Let a worker end with the runner, and close its copies of the runner's pipes.

    The window learns from closed pipes that a runner has ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    os.close(nothing)
