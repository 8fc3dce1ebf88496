"""Generation: each step draws one new token for every sequence, from the nucleus of its logits.

A round processes a prompt (the prefill), which gives the first new token. Each step adds one token,
up to ``new_tokens``; then the next prompt follows. The prefill is not a step: it is timed
separately (``prefill_ms``, the time to the first token). Tokens are drawn on the device, from
random numbers that are generated with the prompt, and are read a few times a second. So no step
waits for the host, and the same seed gives the same text, with or without a CUDA graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from models import sample
from workbench.protocol import Field
from workbench.runner.decoding.rounds import Rounds
from workbench.runner.workloads._workload import (
    BATCH,
    CHUNK,
    PROMPT,
    Bench,
    Compute,
    Step,
    Workload,
    filled_while_decoding,
    one_token_each,
    prompt_and_new,
)

NEW_TOKENS = Field(
    name="new_tokens",
    title="New tokens",
    help="New tokens for each prompt: the prefill gives the first one, and each step one more.",
    default=128,
    minimum=2,
    maximum=1048576,
)
TEMPERATURE = Field(
    name="temperature",
    title="Temperature",
    help="Divides the logits; 0 selects the most probable token.",
    default=0.8,
    minimum=0.0,
    maximum=100.0,
)
TOP_P = Field(
    name="top_p",
    title="Top-p",
    help="Tokens are drawn from the most probable ones, which have this share of the probability.",
    default=0.95,
    minimum=0.001,
    maximum=1.0,
)


def _compute(bench: Bench) -> Compute:
    return bench.decoder.computing()


def _step(bench: Bench, compute: Compute) -> Step:
    decoder, draw = bench.decoder, _drawing(bench)

    def step() -> torch.Tensor:
        with torch.no_grad():
            logits_B1V = compute(decoder.token_B1, decoder.position)
            # Never past the end, though a capture takes its first step several times.
            decoder.done.add_(1).clamp_(max=decoder.new_tokens - 1)
            decoder.write(draw(logits_B1V, decoder.done[None]), decoder.done)
            return decoder.token_B1

    return step


def _drawing(bench: Bench) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function that draws the round's token ``index`` ([1]) for every sequence.

    It takes the logits (B, 1, V).
    """
    uniform_NB1, vocabulary = bench.decoder.uniform_NB1, bench.vocabulary
    temperature, top_p = float(bench.settings["temperature"]), float(bench.settings["top_p"])

    def draw(logits_B1V: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        uniform_B1 = uniform_NB1.index_select(0, index)[0]
        logits_BV = logits_B1V[:, -1, :vocabulary]
        return sample(logits_BV, temperature, top_p, uniform_B1=uniform_B1)

    return draw


def _rounds(bench: Bench, compute: Compute) -> Rounds:
    decoder, draw = bench.decoder, _drawing(bench)
    device = decoder.prompt_BS.device
    first, generator = torch.zeros(1, dtype=torch.int64, device=device), torch.Generator(device)

    def begin(number: int, following: bool) -> None:
        if following:
            bench.batches.advance()
        # The same numbers for the same round, and others for every seed and round.
        generator.manual_seed(random.Random(f"{bench.seed} {number}").getrandbits(63))
        decoder.uniform_NB1.uniform_(generator=generator)
        decoder.begin(number)
        with torch.no_grad():
            decoder.write(draw(bench.prefill(compute), first), 0)

    return Rounds(decoder.new_tokens - 1, begin, device)


def _written_tokens(bench: Bench) -> torch.Tensor:
    return bench.decoder.written


WORKLOAD = Workload(
    name="generate",
    title="Generate text",
    help=__doc__,
    fields=(BATCH, PROMPT, CHUNK, NEW_TOKENS, TEMPERATURE, TOP_P),
    feeds=False,
    tokens=one_token_each,
    sequence=prompt_and_new,
    filled=filled_while_decoding,
    compute=_compute,
    step=_step,
    rounds=_rounds,
    written_tokens=_written_tokens,
)
