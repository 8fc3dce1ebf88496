"""Generation: a prompt processed in pieces, then one sampled token after the other, streamed.

Tokens are sampled from the nucleus (Holtzman et al., "The Curious Case of Neural Text
Degeneration", 2020, arXiv 1904.09751): the smallest set of most probable tokens whose mass reaches
top-p. Nothing here waits for the device, so the host can run ahead; reading a token waits for it.

Shapes: B batch, S sequence, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from models.decode_state import Cache
from models.errors import ConfigurationError
from models.language_model import LanguageModel


def generate(
    model: LanguageModel,
    prompt_BS: Tensor,
    *,
    new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: Generator | None = None,
    cache: Cache | None = None,
    position: int = 0,
    chunk: int | None = None,
    vocabulary: int | None = None,
) -> Iterator[Tensor]:
    """Continue ``prompt_BS`` (int64, on the model's device): an iterator over tokens, int64 [B].

    Each is yielded as soon as it is launched. ``temperature`` divides the logits, 0 takes the most
    probable token. ``generator`` is on the model's device; None is torch's own. ``cache`` continues
    after the ``position`` tokens that it has processed. Afterwards it has also processed the prompt
    and all new tokens but the last, which can begin the next prompt. None makes one that is just
    long enough. ``chunk``: see ``prefill_in_chunks``. ``vocabulary`` excludes rows of the head
    beyond it, which are no tokens. Raises ``ConfigurationError``, at once, for arguments that
    do not fit.
    """
    batch, length = _checked_tokens("generate", prompt_BS)
    if new_tokens < 1:
        raise ConfigurationError(f"generate: new_tokens = {new_tokens} must be at least 1")
    _check_chunk(chunk)
    _check_sampling(temperature, top_p)
    rows = len(model.embedding.weight)
    if vocabulary is not None and not 1 <= vocabulary <= rows:
        raise ConfigurationError(
            f"generate: vocabulary = {vocabulary} is not from 1 to the rows of the head, {rows}"
        )
    if position < 0:
        raise ConfigurationError(f"generate: position = {position} must be at least 0")
    if generator is not None and generator.device.type != prompt_BS.device.type:
        raise ConfigurationError(
            f"generate: the generator is on {generator.device}, but the prompt on "
            f"{prompt_BS.device}"
        )
    needed = position + length + new_tokens - 1
    if cache is None:
        if position:
            raise ConfigurationError(
                f"generate: position {position} needs the cache with the tokens before it"
            )
        cache = model.new_cache(batch, needed)
    if batch != cache.batch or needed > cache.length:
        raise ConfigurationError(
            f"generate: a prompt of shape ({batch}, {length}), from position {position}, and "
            f"new_tokens = {new_tokens} need a cache for batch {batch} and length {needed}, but "
            f"this one is for batch {cache.batch} and {cache.length}"
        )
    return _generated(
        model, prompt_BS, cache, position, chunk, new_tokens, temperature, top_p, generator,
        vocabulary,
    )  # fmt: skip


@torch.no_grad()
def _generated(
    model: LanguageModel,
    prompt_BS: Tensor,
    cache: Cache,
    position: int,
    chunk: int | None,
    new_tokens: int,
    temperature: float,
    top_p: float,
    generator: Generator | None,
    vocabulary: int | None,
) -> Iterator[Tensor]:
    logits_B1V = prefill_in_chunks(model, prompt_BS, cache, chunk=chunk, position=position)
    at = _on_device(position + prompt_BS.shape[1], prompt_BS)
    for left in range(new_tokens, 0, -1):
        token_B = sample(logits_B1V[:, -1, :vocabulary], temperature, top_p, generator)
        yield token_B
        if left > 1:
            logits_B1V = model(token_B[:, None], cache=cache, position=at)
            at = at + 1


@torch.no_grad()
def prefill_in_chunks(
    model: LanguageModel,
    tokens_BS: Tensor,
    cache: Cache,
    *,
    chunk: int | None = None,
    position: int = 0,
) -> Tensor:
    """Process ``tokens_BS`` into ``cache``, ``chunk`` at a time (None: all at once).

    The activations are those of one chunk, so that a sequence of any length up to the cache's is
    possible. ``position`` tokens were processed before; 0 starts over and ignores the cache.
    Returns the logits after the last token, (B, 1, V). Raises ``ConfigurationError`` for arguments
    that do not fit.
    """
    batch, length = _checked_tokens("prefill", tokens_BS)
    _check_chunk(chunk)
    if position < 0 or batch != cache.batch or position + length > cache.length:
        raise ConfigurationError(
            f"prefill: tokens of shape ({batch}, {length}), from position {position}, do not fit "
            f"a cache made for batch {cache.batch} and length {cache.length}"
        )
    for piece_BS, first in pieces(tokens_BS, chunk, position):
        logits_B1V: Tensor = model(piece_BS, cache=cache, position=first, last_only=True)
    return logits_B1V


def pieces(
    tokens_BS: Tensor, chunk: int | None, position: int = 0
) -> list[tuple[Tensor, Tensor | None]]:
    """Split ``tokens_BS`` into views of ``chunk`` tokens at most (None: one), with positions.

    A position is that of the first token as a model's call takes it: None for an empty cache.
    """
    length = tokens_BS.shape[1]
    starts = range(0, length, length if chunk is None else chunk)
    return [
        (
            tokens_BS[:, start : start + starts.step],
            _on_device(position + start, tokens_BS) if position + start else None,
        )
        for start in starts
    ]


def sample(
    logits_BV: Tensor,
    temperature: float,
    top_p: float,
    generator: Generator | None = None,
    uniform_B1: Tensor | None = None,
) -> Tensor:
    """Sample one token per row of ``logits_BV``, int64 [B], from the nucleus of mass ``top_p``.

    The most probable token is always in it. One uniform number per row is drawn, whatever the
    logits. None is drawn for ``temperature`` 0, or if the caller passes them: ``uniform_B1``, in 0
    to 1.
    """
    if temperature == 0:
        return logits_BV.argmax(-1)
    wide_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    # Subtracts the highest logit, which a low temperature would make infinite.
    least = max(temperature, torch.finfo(wide_BV.dtype).tiny)
    scaled_BV = (wide_BV - wide_BV.amax(-1, keepdim=True)) / least
    share_BV, token_BV = scaled_BV.softmax(-1).sort(dim=-1, descending=True, stable=True)
    mass_BV = share_BV.cumsum(-1)
    # In the nucleus: tokens before which the mass is less than top-p.
    last_B1 = (mass_BV - share_BV < top_p).sum(-1, keepdim=True).clamp(min=1) - 1
    if uniform_B1 is None:
        uniform_B1 = torch.rand(
            (len(logits_BV), 1), dtype=mass_BV.dtype, device=mass_BV.device, generator=generator
        )
    goal_B1 = uniform_B1 * mass_BV.gather(-1, last_B1)
    # Rounding could raise the target to the complete mass, one token too far.
    drawn_B1 = (mass_BV <= goal_B1).sum(-1, keepdim=True).minimum(last_B1)
    return token_BV.gather(-1, drawn_B1)[:, 0]


def _check_sampling(temperature: float, top_p: float) -> None:
    if not 0 <= temperature < math.inf:
        raise ConfigurationError(
            f"generate: temperature = {temperature} must be a number of at least 0"
        )
    if not 0 < top_p <= 1:
        raise ConfigurationError(f"generate: top_p = {top_p} must be above 0 and at most 1")


def _check_chunk(chunk: int | None) -> None:
    if chunk is not None and chunk < 1:
        raise ConfigurationError(f"prefill: chunk = {chunk} must be at least 1")


def _checked_tokens(method: str, tokens_BS: Tensor) -> tuple[int, int]:
    if tokens_BS.dim() != 2 or tokens_BS.dtype != torch.int64 or tokens_BS.numel() == 0:
        raise ConfigurationError(
            f"{method}: expected int64 tokens [B, S], at least one, but got {tokens_BS.dtype} "
            f"{tuple(tokens_BS.shape)}"
        )
    return tokens_BS.shape[0], tokens_BS.shape[1]


def _on_device(position: int, like: Tensor) -> Tensor:
    """Return a position on the tokens' device, written by a kernel: a copy would wait."""
    return torch.full((), position, dtype=torch.int64, device=like.device)
