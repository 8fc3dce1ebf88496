"""An A/B of a script: new processes in random pairs, judged as every paired comparison is.

A block is one process from its start to its end; its step time is that of its steady steps. Every
pair has processes, and so builds, of its own.
"""

from __future__ import annotations

import math
import random
import statistics as basic_statistics
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sessions.model import Judgement, PairedComparison, Scalar, Session
from sessions.verdicts import statistics, verdict
from workbench import protocol
from workbench.instrument.settings import DEFAULT
from workbench.scripts import plan
from workbench.scripts.configuration import configuration_of, label_of
from workbench.scripts.launch import ScriptProcess
from workbench.scripts.plan import NOT_STARTED, failed, made_no_step, not_started, wait_for

LEAST_STEADY = 5  # steps of a process, without which its block is void
HOPELESS_PAIRS = 3  # void pairs, after which the comparison ends
# A process is ended after so many times the duration of the longest before, and seconds more.
HANG_FACTOR, HANG_S = 5.0, 60.0
INDEX = 0  # index of the comparison; the watcher makes no comparison


class ScriptComparison:
    """Alternates processes of two sets of settings until the verdict is clear or time is spent.

    ``steps`` ends every process after so many, if given. No pair begins after ``budget_s``. The
    first process may take as long as it likes once it steps; a later one that hangs is ended, and
    its block void.
    """

    allowed_s = math.inf

    def __init__(
        self,
        argv: Sequence[str],
        sides: Sequence[Mapping[str, str]],
        *,
        budget_s: float,
        region: float,
        order: str,
        seed: int,
        steps: int | None = None,
    ) -> None:
        self._argv = argv
        names = dict.fromkeys([*sides[0], *sides[1]], DEFAULT)
        self._sides = [{**names, **chosen} for chosen in sides]
        self._facts: dict[str, Scalar] = {
            "budget_s": budget_s,
            "region": region,
            "order": order,
            "seed": seed,
            "identical": sides[0] == sides[1],
            "rebuilt_each_block": True,
            "rebuilt_because": "each block is a new process",
        }
        self._budget_s = budget_s
        self._region = region
        self._order = order
        self._steps = steps
        self._random = random.Random(seed)
        self._session: Session | None = None
        self._process: ScriptProcess | None = None
        self._timer: threading.Timer | None = None
        self._process_began_s = 0.0
        self._longest_s = 0.0  # duration of the longest process that did not hang
        self._has_hung = False
        self._waiting: list[int] = []  # arms of the pair that have not run, the next one last
        self._pair = -1
        self._side = 0  # side of the current process
        self._segments: dict[int, int] = {}
        self._blocks: list[protocol.Block] = []
        self._written = 0  # blocks that the session has
        self._judgement: Judgement | None = None
        self._began_s = 0.0
        self._spent_s = 0.0
        self.exit_code = 0
        self.failure: protocol.Failure | None = None

    def begin(
        self, catalogue: protocol.Catalogue, session: Session
    ) -> Iterable[protocol.AnyMessage]:
        """Store the session."""
        self._session = session
        self._began_s = time.monotonic()
        return ()

    def next(self, catalogue: protocol.Catalogue) -> protocol.Command | None:
        """Start the next process; return None if the comparison is over."""
        if self.failure is not None:
            return None
        if not self._waiting:
            if self._is_over():
                return None
            self._pair += 1
            is_turned = self._pair % 2 == 1
            if self._order == "random" and self._pair:  # A first begins the session's baseline
                is_turned = bool(self._random.getrandbits(1))
            self._waiting = [0, 1] if is_turned else [1, 0]
        self._side = self._waiting.pop()
        chosen = self._sides[self._side]
        try:
            self._process = ScriptProcess(self._argv, chosen, hidden=True)
        except OSError as error:
            self.exit_code, self.failure = NOT_STARTED, not_started(self._argv, error)
            return None
        self._limit(self._process)
        return protocol.Script(
            configuration=configuration_of(self._argv, chosen),
            label=f"{'AB'[self._side]}: {label_of(self._argv, chosen)}",
            folder=str(self._process.folder),
            segment=self._segments.get(self._side),
            block=len(self._blocks) + 1,
        )

    def on_message(self, message: protocol.AnyMessage) -> Iterable[protocol.AnyMessage]:
        """End the process once it has made enough steps; return its block once it has ended."""
        match message:
            case protocol.SegmentStarted():
                self._segments[self._side] = message.index
            case protocol.Steps() if self._process is not None:
                if not self._longest_s:
                    self._end_limit()
                if self._steps is not None and int(self._mask().sum()) >= self._steps:
                    self._process.end()
            case protocol.Finished(reason="done"):
                self._end_block()
                yield from self._results()

    def pending_messages(self) -> Iterable[protocol.AnyMessage]:
        """Record nothing between two commands."""
        return ()

    def _results(self) -> Iterable[protocol.AnyMessage]:
        """Return the blocks that have ended, and what the pairs so far show."""
        if len(self._segments) < 2:
            return
        if not self._written:
            yield protocol.ComparisonStarted(
                index=INDEX,
                arms=[label_of(self._argv, chosen) for chosen in self._sides],
                segments=[self._segments[0], self._segments[1]],
                request=self._facts,
            )
        new = self._blocks[self._written :]
        self._written = len(self._blocks)
        for block in new:
            yield protocol.BlockDone(comparison=INDEX, block=block)
        if new and len(self._blocks) % 2 == 0:
            yield self._judged()

    def on_timeout(self, command: protocol.Command | None) -> bool:
        """Return False: a script may take as long as it likes."""
        return False

    def on_runner_lost(self) -> bool:
        """End the comparison with its watcher."""
        return False

    def finish(self, why: str = "") -> Iterable[protocol.AnyMessage]:
        """End the process that still runs, and return the last judgement."""
        if self._process is not None:
            if why:
                wait_for(self._process, is_interrupted=True)
            else:
                self._process.end()
            self._end_limit()
            self._process.remove()
        if self._written > 1:
            yield self._judged(final=True)
        if self.failure is not None:
            yield self.failure

    def _limit(self, process: ScriptProcess) -> None:
        """End the process if it takes much longer than those before, or the first never steps."""
        self._process_began_s, self._has_hung = time.monotonic(), False

        def end() -> None:
            self._has_hung = process.is_running
            process.end()

        seconds = HANG_FACTOR * self._longest_s + HANG_S if self._longest_s else plan.FIRST_STEP_S
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
        self._timer.daemon = True
        self._timer.start()

    def _end_limit(self) -> None:
        """Let nothing end the process any more: it has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None

    def _is_over(self) -> bool:
        made, counted = self._pair + 1, 0 if self._judgement is None else self._judgement.pairs
        if made >= HOPELESS_PAIRS and not counted:
            return True
        if self._judgement is not None and self._judgement.verdict != "UNDECIDED":
            return True
        return made > 0 and self._spent_s >= self._budget_s

    def _end_block(self) -> None:
        """Make the block of the process that has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        self._end_limit()
        if not self._has_hung:
            self._longest_s = max(self._longest_s, time.monotonic() - self._process_began_s)
        code = process.exit_code
        if code or (self._has_hung and not self._longest_s):
            self.exit_code = code
            self.failure = failed(code, int(self._mask().sum())) or made_no_step()
            self.failure.sentence = f"{'AB'[self._side]}: {self.failure.sentence}"
            self.failure.detail = process.tail
        else:
            self._blocks.append(self._block())
        process.remove()
        self._spent_s = time.monotonic() - self._began_s

    def _mask(self) -> np.ndarray:
        """Return which steps of the side's segment are of the block that runs."""
        assert self._session is not None
        index = self._segments.get(self._side)
        if index is None:
            return np.zeros(0, bool)
        mask: np.ndarray = self._session.segments[index].steps["block"] == len(self._blocks) + 1
        return mask

    def _block(self) -> protocol.Block:
        times: list[float] = []
        clock_mhz: float | None = None
        if len(mask := self._mask()):
            assert self._session is not None
            segment = self._session.segments[self._segments[self._side]]
            steady = mask & statistics.steady(segment)
            times = statistics.step_ms(segment)[steady].tolist()
            clock_mhz = self._clock_mhz(segment.steps["t_s"][steady])
        void = ""
        if len(times) < LEAST_STEADY:
            void = f"its process made {len(times)} of at least {LEAST_STEADY} steady steps"
        if self._has_hung:
            seconds = time.monotonic() - self._process_began_s
            void = (
                f"its process seemed to hang and was ended after {seconds:.0f} s; the longest "
                f"before took {self._longest_s:.0f} s"
            )
        return protocol.Block(
            arm=self._side,
            pair=self._pair,
            median_ms=basic_statistics.median(times) if times else 0.0,
            mean_ms=basic_statistics.fmean(times) if times else None,
            clock_mhz=clock_mhz,
            void=void,
            build=self._pair,
        )

    def _clock_mhz(self, times_s: np.ndarray) -> float | None:
        """Return the mean SM clock while these steps ran; None without a GPU."""
        assert self._session is not None
        tables = [table for name, table in self._session.telemetry.items() if name != "cpu"]
        if not tables or not len(times_s):
            return None
        inside = (tables[0]["t_s"] >= times_s[0]) & (tables[0]["t_s"] <= times_s[-1])
        clocks = tables[0]["sm_clock"][inside]
        clocks = clocks[np.isfinite(clocks)]
        return float(clocks.mean()) if len(clocks) else None

    def _judged(self, final: bool = False) -> protocol.Judged:
        self._judgement = verdict.judge(
            self._comparison(), region=self._region, seconds=self._spent_s
        )
        return protocol.Judged(
            comparison=INDEX, judgement=self._judgement, seconds=self._spent_s, final=final
        )

    def _comparison(self) -> PairedComparison:
        assert self._session is not None
        return self._session.comparisons[INDEX]
