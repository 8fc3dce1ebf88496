"""Expert parallelism of a model: each rank has some of the experts of every mixture.

As in Lepikhin et al., "GShard" (arXiv 2006.16668): ranks have different tokens and exchange them
twice in each mixture. A token is sent to the ranks that have its chosen experts, and their results
are sent back. The router and all other parts are replicated.

All communication uses an ``Exchange``, which the process that runs the ranks installs: models do
not know about processes. A mixture whose experts can be sharded has ``expert_division()``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from models.builder import ModelBuilder
from models.parallel.tensor_parallel_plan import WHOLE, Cut, Division, divide

Experts = Callable[[Tensor, Tensor, Tensor], Tensor]  # called with tokens, chosen experts, weights


class Exchange:
    """Exchange of tokens between ranks; this class, with all experts on one rank, does nothing."""

    def run(self, experts: Experts, x_BSD: Tensor, index_BSK: Tensor, weight_BSK: Tensor) -> Tensor:
        """Return the weighted sum of the outputs of each token's experts, (B, S, D)."""
        return experts(x_BSD, index_BSK, weight_BSK)


LOCAL = Exchange()


def expert_divisions(model: nn.Module) -> Iterator[tuple[str, Division | str]]:
    """Yield the mixtures of a model whose experts can be divided, by name."""
    for name, module in model.named_modules():
        if hasattr(module, "expert_division"):
            yield name, module.expert_division()


def divide_experts(model: nn.Module, ranks: int) -> dict[str, Cut]:
    """Leave a rank's experts in a structure without values; return the cuts by parameter."""
    return divide(model, ranks, WHOLE, expert_divisions)


def install(model: nn.Module, exchange: Exchange) -> None:
    """Let every mixture of the model send its tokens through ``exchange``."""
    for module in model.modules():
        if hasattr(module, "exchange"):
            module.exchange = exchange  # type: ignore[assignment]


@dataclass(frozen=True)
class ExpertSizes:
    """Experts of each mixture, parameters of all experts, and the memory that ranks save for them.

    ``added``: compute-dtype numbers per token of a rank, in all mixtures. Zeros without experts.
    """

    count: int
    numel: int
    added: int


@functools.cache
def experts_of(family: ModelBuilder, config: Any) -> ExpertSizes:
    """Return the sizes of a model's experts; only its structure is built."""
    model: nn.Module = family.build(config)
    count = numel = added = 0
    for name, division in expert_divisions(model):
        assert isinstance(division, Division)
        mixture = model.get_submodule(name)
        numel += sum(mixture.get_parameter(cut).numel() for cut in division.cuts)
        count, added = division.count, added + division.added
    return ExpertSizes(count, numel, added)
