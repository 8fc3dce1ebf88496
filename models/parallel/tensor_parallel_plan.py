"""Tensor-parallel plan of a model: which parameters are sharded where, and where ranks communicate.

As in Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3: every rank sees all tokens and
holds the same part of each wide layer. A layer's first linears are split by outputs and the last by
inputs, so that each rank computes its own heads or columns in between. The partial results are
summed over the ranks at the layer's end, and the gradients of its input at its start. Parameters
that no layer shards are replicated. With sequence parallelism, as in Korthikanti et al. (arXiv
2205.05198), the tokens are split between the layers.

All communication uses a ``Region``, which the process that runs the ranks installs: models
do not know about processes. A layer that can be sharded has ``division()``, and computes between
``region.enter`` and ``region.leave``. The ``division()`` of a layer that must be replicated returns
the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.builder import ModelBuilder
from models.initialisation import keep_marks


class Region:
    """Boundaries of a sharded layer; this class, for a layer that is not sharded, does nothing."""

    def enter(self, x: Tensor, product: bool = False) -> Tensor:
        """Return ``x``; in a sharded layer, each rank has a part of its gradient.

        ``product``: only linears use it, so that it may be cast as autocast does there.
        """
        return x

    def leave(self, y: Tensor) -> Tensor:
        """Return the sum of the ranks' ``y`` in a sharded layer."""
        return y

    def common(self, x: Tensor) -> Tensor:
        """Return ``x``, which is equal on all ranks in a sharded layer; gradients are partial."""
        return x

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of the ranks' ``x``, with which each rank continues in the layer."""
        return x

    def split(self, x: Tensor) -> Tensor:
        """Return this rank's tokens of ``x`` (B, S, ...), if the residual stream is split."""
        return x

    def join(self, x: Tensor) -> Tensor:
        """Gather the tokens of all ranks."""
        return x

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over the ranks of ``x``, a mean over this rank's tokens."""
        return x


WHOLE = Region()


class Cut(NamedTuple):
    """Sharding of a parameter: ``sections`` along ``axis``, each split evenly.

    Every rank holds the sections with the indices ``replicated`` completely.
    """

    axis: int
    sections: tuple[int, ...]
    replicated: tuple[int, ...] = ()

    def sharded_numel(self, full: Tensor) -> int:
        """Return how many elements of the full parameter are sharded."""
        sizes = [size for index, size in enumerate(self.sections) if index not in self.replicated]
        return full.numel() // sum(self.sections) * sum(sizes)

    def replicated_sections(self, shard: Tensor, ranks: int) -> list[Tensor]:
        """Return the sections of a shard that every rank has completely."""
        sections = shard.split(self._sizes(ranks), self.axis)
        return [sections[index] for index in self.replicated]

    def shard(self, full: Tensor, rank: int, ranks: int) -> Tensor:
        """Return one rank's shard as a new tensor."""
        return torch.cat(self._sections(full, rank, ranks), self.axis)

    def write_back(self, shard: Tensor, full: Tensor, rank: int, ranks: int) -> None:
        """Write one rank's shard back into the full parameter."""
        targets = self._sections(full, rank, ranks)
        sources = shard.split(self._sizes(ranks), self.axis)
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    def _sizes(self, ranks: int) -> list[int]:
        """Return the size of each section in a shard."""
        return [
            size if index in self.replicated else size // ranks
            for index, size in enumerate(self.sections)
        ]

    def _sections(self, full: Tensor, rank: int, ranks: int) -> list[Tensor]:
        """Return a rank's part of each section, as views of the full parameter."""
        sections = full.split(self.sections, self.axis)
        return [
            section if index in self.replicated else section.chunk(ranks, self.axis)[rank]
            for index, section in enumerate(sections)
        ]


@dataclass(frozen=True)
class Division:
    """Sharding of one layer: ``count`` units named ``unit`` (plural), and the parameters' ``cuts``.

    ``cuts`` are by the parameter's name in the layer. ``narrow(ranks)`` turns the layer into a
    shard. ``saved``: compute-dtype numbers per token that the layer saves inside for backward, and
    that are sharded; ``unfused``: additional ones without fused kernels. ``fp32``: FP32 numbers per
    token, sharded too, that shards save and a fused kernel of the full layer does not. Of these,
    ``copies`` are those of numbers that are saved anyway, and missing if these are in FP32 already.
    ``added``: compute-dtype numbers per token of this rank that only a shard saves.
    """

    unit: str
    count: int
    cuts: Mapping[str, Cut]
    saved: int
    narrow: Callable[[int], None] = lambda ranks: None
    unfused: int = 0
    fp32: int = 0
    copies: int = 0
    added: int = 0


def experts_division(down_XEF: Tensor, choices: int) -> Division:
    """Shard by columns of SwiGLU experts, whose last map is ``down_XEF``, [experts, model, width].

    Each rank has a part of every expert, and so the same work for any routing.
    """
    hidden = down_XEF.shape[2]
    cuts = {"gate_up": Cut(1, (hidden, hidden)), "down": Cut(2, (hidden,))}
    return Division("columns of an expert", hidden, cuts, 2 * choices * hidden)


@dataclass(frozen=True)
class Divisible:
    """Parts of a model that can be sharded."""

    layers: Mapping[str, Division]  # by name
    replicated: tuple[str, ...]  # why other wide layers are replicated, each reason once
    numel: int  # elements of all parameters
    sharded_numel: int  # elements of the sharded parameters
    sharded_numel_in_blocks: int  # elements of the sharded parameters in blocks
    why_not_split: str  # why the residual stream between them cannot be split; empty if it can

    def of_block(self, index: int) -> list[Division]:
        """Return the layers of one block."""
        return [
            division
            for name, division in self.layers.items()
            if name.startswith(f"blocks.{index}.")
        ]

    def why_uneven(self, ranks: int) -> str:
        """Return why ``ranks`` cannot shard the layers evenly, as a clause; empty if they can."""
        for division in self.layers.values():
            if division.count % ranks:
                return (
                    f"the number of {division.unit}, {division.count}, is not a multiple of the "
                    f"number of ranks, {ranks}"
                )
        return ""


Divisions = Callable[[nn.Module], Iterator[tuple[str, "Division | str"]]]


def divisions(model: nn.Module) -> Iterator[tuple[str, Division | str]]:
    """Yield a model's layers by name, with their division or the reason why there is none.

    Layers inside a layer without a division are not sharded either.
    """
    unsharded: list[str] = []
    for name, module in model.named_modules():
        if hasattr(module, "division") and not any(name.startswith(f"{n}.") for n in unsharded):
            division = module.division()
            if isinstance(division, str):
                unsharded.append(name)
            yield name, division


@functools.cache
def divisible(family: ModelBuilder, config: Any) -> Divisible:
    """Describe the sharding of a configuration's model; only its structure is built."""
    model = family.build(config)
    by_layer = dict(divisions(model))
    layers = {name: plan for name, plan in by_layer.items() if not isinstance(plan, str)}
    reasons = tuple(dict.fromkeys(plan for plan in by_layer.values() if isinstance(plan, str)))
    parameters = dict(model.named_parameters())
    cuts = {name: cut.sharded_numel(parameters[name]) for name, cut in _cuts(layers).items()}
    in_blocks = sum(count for name, count in cuts.items() if name.startswith("blocks."))
    numel = sum(parameter.numel() for parameter in parameters.values())
    why_not_split = _why_not_split(model, reasons)
    return Divisible(layers, reasons, numel, sum(cuts.values()), in_blocks, why_not_split)


def _why_not_split(model: nn.Module, reasons: tuple[str, ...]) -> str:
    """Return why every rank needs the full sequence between the sharded layers; empty if not."""
    if reasons:
        return reasons[0]
    blocks = getattr(model, "blocks", None)
    if blocks is None or not hasattr(model, "stream"):
        return "the model is not a stack of blocks with one residual stream"
    kinds = [type(block).__name__ for block in blocks if not getattr(block, "by_token", False)]
    return f"{kinds[0]} needs the full sequence between its layers" if kinds else ""


def divide(
    model: nn.Module, ranks: int, region: Region, find: Divisions = divisions
) -> dict[str, Cut]:
    """Turn a structure without values into one rank's shard, with ``region`` as boundary.

    Narrows every layer that ``find`` says can be sharded. Returns how parameters are sharded, by
    name. Raises ``ValueError`` where a layer does not divide evenly.
    """
    layers = {name: plan for name, plan in find(model) if not isinstance(plan, str)}
    for name, division in layers.items():
        if division.count % ranks:
            raise ValueError(
                f"divide: the number of {division.unit} of {name}, {division.count}, is not a "
                f"multiple of the number of ranks, {ranks}"
            )
        division.narrow(ranks)
        model.get_submodule(name).region = region  # type: ignore[assignment]
    cuts = _cuts(layers)
    for name, cut in cuts.items():
        path, _, parameter_name = name.rpartition(".")
        module = model.get_submodule(path)
        old = module.get_parameter(parameter_name)
        parameter = nn.Parameter(cut.shard(old.detach(), 0, ranks), requires_grad=old.requires_grad)
        setattr(module, parameter_name, keep_marks(old, parameter))
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
    return cuts


def _cuts(layers: Mapping[str, Division]) -> dict[str, Cut]:
    """Return the cuts by the parameter's name in the model."""
    return {
        f"{name}.{parameter_name}" if name else parameter_name: cut
        for name, division in layers.items()
        for parameter_name, cut in division.cuts.items()
    }
