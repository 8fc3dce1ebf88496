"""Greedy decoding steps of plain models, of our own modules and of ``transformers``.

Each continues from the prompt of one of our variants that decodes, with a static decode state. A
``call`` takes tokens (B, 1) and the position of the first one, [], and returns logits (B, 1, V).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from workbench.runner.variants.variant import Variant

Step = Callable[[], Any]


def size_of(outputs: Tensor) -> float:
    """Return the root of the mean square."""
    return float(outputs.float().square().mean().sqrt())


def decoded_size(call: Any, arm: Variant) -> float:
    """Return the size of the logits of the first decoding step after the prompt."""
    decoder = arm.decoder
    assert decoder is not None
    position = torch.tensor(decoder.prompt_length, device=decoder.prompt_BS.device)
    with torch.no_grad():
        return size_of(call(decoder.prompt_BS[:, -1:], position))


def begin_plain(model: Any, arm: Variant) -> Any:
    """Return the plain model's function of a token and its position; the prompt is decoded."""
    decoder = arm.decoder
    assert decoder is not None
    prompt_BS, model = decoder.prompt_BS, model.eval()
    states = model.new_states(len(prompt_BS), decoder.prompt_length + decoder.new_tokens)

    def call(token_B1: Tensor, position: Tensor) -> Tensor:
        return model(token_B1, states=states, position=position)

    with torch.no_grad():
        for index in range(decoder.prompt_length):
            position = torch.tensor(index, device=prompt_BS.device)
            call(prompt_BS[:, index : index + 1], position)
    return call


def begin_own(model: Any, arm: Variant) -> Any:
    """Return the same of a copy of our own modules."""
    decoder = arm.decoder
    assert decoder is not None
    length = decoder.prompt_length + decoder.new_tokens
    cache = model.eval().new_cache(len(decoder.prompt_BS), length)
    cache.mark_static()
    with torch.no_grad():
        model(decoder.prompt_BS, cache=cache, last_only=True)

    def call(token_B1: Tensor, position: Tensor) -> Tensor:
        return model(token_B1, cache=cache, position=position, last_only=True)

    return call


def begin_theirs(model: Any, arm: Variant) -> tuple[Any, Callable[[], None]]:
    """Return the same of ``transformers`` with a static cache, and what starts a new round."""
    from transformers import StaticCache

    decoder = arm.decoder
    assert decoder is not None
    length = decoder.prompt_length + decoder.new_tokens
    cache = StaticCache(config=model.config, max_cache_len=length)
    with torch.no_grad():
        model(input_ids=decoder.prompt_BS, past_key_values=cache, use_cache=True)

    def call(token_B1: Tensor, position: Tensor) -> Tensor:
        where = position[None, None].expand(len(token_B1), 1)
        return model(
            input_ids=token_B1, past_key_values=cache, position_ids=where, use_cache=True
        ).logits

    def again() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(decoder.prompt_length)

    return call, again


def decoding(call: Any, arm: Variant, mode: str, again: Callable[[], None] = lambda: None) -> Step:
    """Return a greedy decoding step; it begins again after the prompt where ours does too."""
    decoder = arm.decoder
    assert decoder is not None
    first = decoder.prompt_length
    token_B1, position = decoder.prompt_BS[:, -1:].clone(), torch.tensor(first)
    position = position.to(token_B1.device)
    options = None if mode == "default" else mode
    compiled = torch.compile(call, mode=options, dynamic=False)
    done = 0

    def step() -> None:
        nonlocal done
        if done % decoder.new_tokens == 0:
            position.fill_(first)
            again()
        done += 1
        with torch.no_grad():
            token_B1.copy_(compiled(token_B1, position).argmax(-1))
            position.add_(1)

    return step
