"""Gradient checkpointing: blocks that save less for backward, and the tensors that they save.

A checkpointed block saves its inputs and runs again in backward (Chen et al., arXiv 1604.06174).
Under "operators" it also saves outputs that are expensive to compute and small: those of torch's
matrix products, its SDPA kernels and our own attention. It recomputes only the rest (Korthikanti et
al., arXiv 2205.05198, section 5, with the choice inverted). Any other kernel that is launched from
an autograd function, such as Triton's, is not an operator and always runs again.
"""

from __future__ import annotations

import functools
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import kernels
from kernels.core.autograd import are_operators

# Every n-th block is checkpointed, by mode; 0: none.
CHECKPOINTING = {"none": 0, "full": 1, "selective": 2, "third": 3, "fourth": 4, "operators": 1}

_KEPT_OPERATORS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "_grouped_mm",
    "_scaled_mm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "attention_forward",  # our own
)
_kept: Counter[str] = Counter()


def recomputed(
    mode: str, block: Callable[..., Any], *inputs: Any, repeats_draws: bool = False
) -> Any:
    """Run ``block``; save tensors by ``mode`` and recompute the rest in backward.

    ``repeats_draws``: the block draws the same random numbers again. This saves the generators'
    states, which is impossible while a graph is captured. Our own blocks draw none.
    """
    keeps = {"context_fn": _keeping} if mode == "operators" else {}
    call = functools.partial(
        checkpoint, use_reentrant=False, preserve_rng_state=repeats_draws, **keeps
    )
    if torch.compiler.is_compiling():
        return call(block, *inputs)
    if mode == "operators":  # graphs contain operators anyway
        block = functools.partial(_as_operators, block)
    try:
        return call(block, *inputs)
    except BaseException as error:
        # In torch 2.11, the checkpoint of a block that raised stays open while its frame exists. It
        # takes tensors that other passes save, and their gradients fail.
        traceback.clear_frames(error.__traceback__)
        raise


def _as_operators(block: Callable[..., Any], *inputs: Any) -> Any:
    with kernels.as_operators():
        return block(*inputs)


def saves(operator: str) -> bool:
    """Return True within a block of "operators" that saves outputs of this fused operator."""
    return are_operators() and f"{operator}_forward" in _KEPT_OPERATORS


def kept_operators() -> dict[str, int]:
    """Count the outputs that "operators" has saved since the last reset, by operator.

    Those of a compiled step are counted when it is traced, which happens more than once.
    """
    return dict(_kept)


def reset_kept_operators() -> None:
    """Reset the counts."""
    _kept.clear()


def _keeping() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = str(getattr(operator, "overloadpacket", operator)).rpartition(".")[2]
    if name not in _KEPT_OPERATORS:
        return CheckpointPolicy.PREFER_RECOMPUTE
    if not context.is_recompute:
        _kept[name.removeprefix("_")] += 1
    return CheckpointPolicy.MUST_SAVE
