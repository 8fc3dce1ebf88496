"""Task for tokens and numbers together: only both together determine the answer.

    score_c = sum over t of U[token_t, c] / sqrt(T) + sum over f of W[f, c] tabular_f

U and W are normal (each column then of mean 0 and variance 1 in U, of length 1 in W) and the same
for every seed, so that all batches belong to one task. The answer is the score itself, or the c
with the highest score.
"""

# Shapes: B batch, T tokens, F tabular features, V vocabulary, C outputs.

from __future__ import annotations

import torch
from torch import Generator, Tensor

TEACHER_SEED = 20260101


def draw_hybrid(
    vocabulary: int,
    features: int,
    outputs: int,
    batch: int,
    length: int,
    classify: bool,
    generator: Generator,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor]]:
    """Draw tokens (B, T) int64 and features (B, F), with their targets.

    The targets are classes (B,) int64 or scores (B, C).
    """
    tokens_BT = torch.randint(vocabulary, (batch, length), generator=generator)
    tabular_BF = torch.randn(batch, features, generator=generator)
    text_BC, table_BC = scores(vocabulary, outputs, tokens_BT, tabular_BF)
    score_BC = text_BC + table_BC
    return (tokens_BT, tabular_BF), (score_BC.argmax(-1) if classify else score_BC,)


def scores(
    vocabulary: int, outputs: int, tokens_BT: Tensor, tabular_BF: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the contributions of tokens and features to the score: (B, C) each, variance 1."""
    teacher = Generator().manual_seed(TEACHER_SEED)
    table_FC = torch.randn(tabular_BF.shape[1], outputs, generator=teacher)
    table_FC = table_FC / table_FC.norm(dim=0)
    table_VC = torch.randn(vocabulary, outputs, generator=teacher)
    table_VC = (table_VC - table_VC.mean(0)) / table_VC.std(0, correction=0)
    text_BC = table_VC[tokens_BT].sum(1) / tokens_BT.shape[1] ** 0.5
    return text_BC, tabular_BF @ table_FC
