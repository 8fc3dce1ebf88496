"""Decode: one token per sequence and step, greedily, from a KV cache filled by a prompt.

The cache has a fixed length, and a step reads the position from the device, so that the same step
can be captured in a CUDA graph. After ``new_tokens`` steps, decoding starts again after the prompt:
a recurrent state, which depends on all earlier tokens, is restored between two steps.
"""

from __future__ import annotations

import torch

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
    tokens_field,
)

NEW_TOKENS = tokens_field(
    "new_tokens",
    "New tokens",
    "Tokens decoded after the prompt. Then decoding starts again after the prompt.",
)


def _compute(bench: Bench) -> Compute:
    compute = bench.decoder.computing()
    with torch.no_grad():
        bench.prefill(compute)
    return compute


def _step(bench: Bench, compute: Compute) -> Step:
    decoder = bench.decoder

    def step() -> torch.Tensor:
        with torch.no_grad():
            logits_B1V = compute(decoder.token_B1, decoder.position)
            decoder.token_B1.copy_(logits_B1V.argmax(dim=-1))
            decoder.done.add_(1).remainder_(decoder.new_tokens)
            return decoder.token_B1

    return step


def _rounds(bench: Bench, compute: Compute) -> Rounds:
    decoder = bench.decoder
    after_prompt = decoder.cache.mark()
    token_B1 = decoder.token_B1.clone()

    def begin(number: int, following: bool) -> None:
        decoder.cache.go_back(after_prompt)
        decoder.token_B1.copy_(token_B1)
        decoder.done.zero_()

    return Rounds(decoder.new_tokens, begin, token_B1.device)


WORKLOAD = Workload(
    name="decode",
    title="Decode",
    help=__doc__,
    fields=(BATCH, PROMPT, CHUNK, NEW_TOKENS),
    feeds=False,
    tokens=one_token_each,
    sequence=prompt_and_new,
    filled=filled_while_decoding,
    compute=_compute,
    step=_step,
    rounds=_rounds,
)
