"""Decode: one token per sequence and step, greedily, from a KV cache filled by a prompt.

The cache has a fixed length, and a step reads the position from the device, so that the same step
can be captured in a CUDA graph. After ``new_tokens`` steps decoding begins anew after the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sessions.model import Scalar
from workbench.runner.workloads._workload import (
    BATCH,
    Bench,
    Compute,
    Step,
    Workload,
    tokens_field,
)

PROMPT = tokens_field("sequence", "Prompt", "Tokens in the cache before the first step.")
NEW_TOKENS = tokens_field(
    "new_tokens", "New tokens", "Tokens decoded after the prompt before decoding begins anew."
)


def _length(settings: Mapping[str, Scalar]) -> int:
    return int(settings["sequence"]) + int(settings["new_tokens"])


def _tokens(settings: Mapping[str, Scalar]) -> int:
    return int(settings["batch"])


def _compute(bench: Bench) -> Compute:
    model = bench.language_model
    (prompt_BS,) = bench.batches.inputs
    cache = model.new_cache(prompt_BS.shape[0], _length(bench.settings))

    @torch.no_grad()
    def prefill() -> None:
        model(prompt_BS, cache=cache, last_only=True)

    prefill()
    bench.rewind.append(prefill)

    def compute(tokens_B1: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return model(tokens_B1, cache=cache, position=position)

    return compute


def _step(bench: Bench, compute: Compute) -> Step:
    (prompt_BS,) = bench.batches.inputs
    prompt, new_tokens = prompt_BS.shape[1], int(bench.settings["new_tokens"])
    token_B1 = prompt_BS[:, -1:].clone()
    done = torch.zeros((), dtype=torch.int64, device=prompt_BS.device)

    def step() -> torch.Tensor:
        with torch.no_grad():
            logits_B1V = compute(token_B1, done + prompt)
            token_B1.copy_(logits_B1V.argmax(dim=-1))
            done.add_(1).remainder_(new_tokens)
            return token_B1

    return step


WORKLOAD = Workload(
    name="decode",
    title="Decode",
    help=__doc__,
    fields=(BATCH, PROMPT, NEW_TOKENS),
    feeds=False,
    tokens=_tokens,
    sequence=_length,
    compute=_compute,
    step=_step,
)
