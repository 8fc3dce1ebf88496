"""Generated text: what the first sequence writes, read back a few times a second between steps.

No step waits for a reading: on the GPU it is a copy into pinned memory, queued behind the steps so
far. Complete rounds are left out where text is written faster than it is read.
"""

from __future__ import annotations

import codecs
import statistics
import time
from typing import NamedTuple

import torch

from sessions.model import Scalar
from workbench import protocol
from workbench.runner.batches import SYNTHETIC, Batches
from workbench.runner.decoding.rounds import Rounds
from workbench.runner.wire import Wire

PERIOD_NS = 250_000_000


class _Reading(NamedTuple):
    """A copy in progress: of round ``number``, with its count of written tokens."""

    t_s: float
    number: int
    written: int


class Spelling:
    """Tokens as text: decoded bytes if the data is a file, otherwise their numbers.

    A token that is no byte is shown as its number in angle brackets. A character may begin in one
    piece and end in the next.
    """

    def __init__(self, data: str) -> None:
        self._bytes = data != SYNTHETIC
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self) -> None:
        """Start a new text."""
        self._decoder.reset()

    def text(self, tokens: list[int]) -> str:
        """Return the text of the next tokens."""
        if not self._bytes:
            return "".join(f"{token} " for token in tokens)
        # An unfinished character before a token that is no byte is spelt out as broken.
        return "".join(
            self._decoder.decode(bytes([token]))
            if token < 256
            else f"{self._decoder.decode(b'', final=True)}⟨{token}⟩"
            for token in tokens
        )


class TextReader:
    """Reads the text of one segment; ``poll`` is called between steps.

    ``tokens`` are those that steps write, as in ``Decoder.written``. ``data`` is the source of the
    batches.
    """

    def __init__(
        self,
        wire: Wire,
        segment: int,
        tokens: torch.Tensor,
        rounds: Rounds,
        batches: Batches,
        data: str,
    ) -> None:
        self._wire, self._segment = wire, segment
        self._tokens, self._rounds, self._batches, self._data = tokens, rounds, batches, data
        self._spelling = Spelling(data)
        self._round, self._sent = -1, 0  # the round, and how many of its tokens were sent
        self._reading: _Reading | None = None
        self._due_ns = 0
        self._prefills_ms: list[float] = []
        on_gpu = tokens.is_cuda
        (prompt_BS,) = batches.inputs
        self._event = torch.cuda.Event() if on_gpu else None
        self._host_tokens, self._host_prompt = (
            torch.empty(source.shape, dtype=source.dtype, pin_memory=on_gpu)
            for source in (tokens, prompt_BS[0])
        )

    def poll(self) -> None:
        """Start a copy of the tokens if one is due, and send the last copy if it has arrived."""
        now_ns = time.perf_counter_ns()
        if self._reading is None and now_ns < self._due_ns:
            return
        if self._reading is None:
            self._start_copy()
            self._due_ns = now_ns + PERIOD_NS
        if self._event is None or self._event.query():
            self._send()

    def finish(self) -> None:
        """Send how the segment's text ended; waits for its last step."""
        self._start_copy()
        if self._event is not None:
            self._event.synchronize()
        self._send()

    def _start_copy(self) -> None:
        rounds = self._rounds
        self._host_tokens.copy_(self._tokens, non_blocking=True)
        self._host_prompt.copy_(self._batches.inputs[0][0], non_blocking=True)
        if self._event is not None:
            self._event.record()
        self._reading = _Reading(self._wire.seconds(), rounds.number, rounds.done + 1)

    def _send(self) -> None:
        reading, self._reading = self._reading, None
        assert reading is not None
        if reading.number == self._round + 1 and self._round >= 0:
            self._send_piece(reading, self._round, self._host_tokens.shape[1])
        self._send_piece(reading, reading.number, reading.written)
        self._send_prefills()

    def _send_piece(self, reading: _Reading, number: int, count: int) -> None:
        """Send those of a round's first ``count`` tokens that were not sent yet."""
        if number != self._round:
            self._round, self._sent = number, 0
            self._spelling.begin()
        new = self._host_tokens[number % 2, self._sent : count].tolist()
        if not new:
            return
        prompt = ""
        if self._sent == 0:
            prompt = Spelling(self._data).text(self._host_prompt.tolist())
        self._wire.send(
            protocol.Generated(
                t_s=reading.t_s,
                segment=self._segment,
                sequence=number,
                start=self._sent,
                prompt=prompt,
                text=self._spelling.text(new),
            )
        )
        self._sent = count

    def _send_prefills(self) -> None:
        spent_ms = self._rounds.spent_ms()
        if spent_ms:
            self._prefills_ms += spent_ms
            ledger: dict[str, Scalar] = {
                "prefills": len(self._prefills_ms),
                "prefill_ms": round(statistics.median(self._prefills_ms), 4),
            }
            self._wire.send(protocol.Facts(segment=self._segment, ledger=ledger))
