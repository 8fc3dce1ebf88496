"""How layers are divided among ranks: which parameters are cut where, and where ranks meet.

As in Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3: every rank sees all tokens and
holds the same part of each wide layer. A layer's first linears are cut by their outputs and the
last by its inputs, so that in between each rank computes heads or columns of its own; the parts of
the result are summed over the ranks where the layer is left, and the gradients of what went in
where it is entered. What no layer cuts, every rank has; or, as in Korthikanti et al. (arXiv
2205.05198), its tokens of what lies between the layers.

Whatever ranks tell each other goes through a ``Region``, which whoever runs the ranks installs: no
model knows of processes. A layer that can be divided has ``division()``, and computes between
``region.enter`` and ``region.leave``; one that every rank needs whole has a ``division()`` that
says why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from models._initialise import keep_marks

if TYPE_CHECKING:
    from models._family import Family


class Region:
    """Where a layer is entered and left: of a layer that one rank has whole, nothing happens."""

    def enter(self, x: Tensor, product: bool = False) -> Tensor:
        """``x``, of whose gradient each rank has a part in a divided layer.

        ``product``: it goes into linears alone, so that it may be narrowed as autocast does there.
        """
        return x

    def leave(self, y: Tensor) -> Tensor:
        """The sum of what each rank has of ``y`` in a divided layer."""
        return y

    def common(self, x: Tensor) -> Tensor:
        """``x``, which is alike on all ranks within a divided layer, where each has a part of its
        gradient.
        """
        return x

    def total(self, x: Tensor) -> Tensor:
        """The sum of what each rank has of ``x``, for each of them to go on with within a layer."""
        return x

    def split(self, x: Tensor) -> Tensor:
        """This rank's tokens of a stream (B, S, E) that is divided between the layers."""
        return x

    def join(self, x: Tensor) -> Tensor:
        """The tokens of all ranks again."""
        return x


WHOLE = Region()


class Cut(NamedTuple):
    """A parameter consists of ``sections`` along ``axis``, each of which is divided evenly.

    Those that ``kept`` numbers, from 0, every rank has whole.
    """

    axis: int
    sections: tuple[int, ...]
    kept: tuple[int, ...] = ()

    def numbers(self, whole: Tensor) -> int:
        """How many of the parameter's numbers are divided."""
        divided = [size for place, size in enumerate(self.sections) if place not in self.kept]
        return whole.numel() // sum(self.sections) * sum(divided)

    def common(self, share: Tensor, ranks: int) -> list[Tensor]:
        """What every rank has of a share."""
        parts = share.split(self._sizes(ranks), self.axis)
        return [parts[place] for place in self.kept]

    def take(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """One rank's share, as a tensor of its own."""
        return torch.cat(self._parts(whole, rank, ranks), self.axis)

    def put(self, share: Tensor, whole: Tensor, rank: int, ranks: int) -> None:
        """Write one rank's share to where it was taken from."""
        parts = self._parts(whole, rank, ranks)
        for part, own in zip(parts, share.split(self._sizes(ranks), self.axis), strict=True):
            part.copy_(own)

    def _sizes(self, ranks: int) -> list[int]:
        """Of each section in a share."""
        return [
            size if place in self.kept else size // ranks
            for place, size in enumerate(self.sections)
        ]

    def _parts(self, whole: Tensor, rank: int, ranks: int) -> list[Tensor]:
        sections = whole.split(self.sections, self.axis)
        return [
            section if place in self.kept else section.chunk(ranks, self.axis)[rank]
            for place, section in enumerate(sections)
        ]


@dataclass(frozen=True)
class Division:
    """``count`` of ``what`` (in the plural) are divided, and with them the layer's ``cuts``.

    ``cuts`` are by the parameter's name in the layer. ``narrow(ranks)`` tells the layer that it is
    a share. ``saved``: compute-dtype numbers a token that the layer keeps within for backward, and
    are divided; ``unfused``: more of them without fused kernels. ``fp32``: FP32 numbers a token,
    divided too, that shares keep in place of what a fused kernel of the whole does without.
    """

    what: str
    count: int
    cuts: Mapping[str, Cut]
    saved: int
    narrow: Callable[[int], None] = lambda ranks: None
    unfused: int = 0
    fp32: int = 0


def experts_division(down_XEF: Tensor, choices: int) -> Division:
    """By columns of SwiGLU experts, whose last map is ``down_XEF``, (experts, model, expert width).

    Each rank has a part of every expert, and so the same work whatever the router chooses.
    """
    hidden = down_XEF.shape[2]
    cuts = {"gate_up": Cut(1, (hidden, hidden)), "down": Cut(2, (hidden,))}
    return Division("columns of an expert", hidden, cuts, 2 * choices * hidden)


@dataclass(frozen=True)
class Divisible:
    """What of a model can be divided."""

    layers: Mapping[str, Division]  # by name
    whole: tuple[str, ...]  # why other layers that are wide stay whole, each reason once
    numbers: int  # of all parameters
    cut: int  # of those that are divided
    cut_in_blocks: int  # of these
    together: str  # why the stream between these layers cannot be divided too; empty where it can

    def of_block(self, index: int) -> list[Division]:
        """The layers of one block."""
        return [each for name, each in self.layers.items() if name.startswith(f"blocks.{index}.")]

    def uneven(self, ranks: int) -> str:
        """What so many ranks do not divide evenly, as a clause; empty where they do."""
        for division in self.layers.values():
            if division.count % ranks:
                return f"{division.count} {division.what} do not divide among {ranks} ranks"
        return ""


def divisions(model: nn.Module) -> Iterator[tuple[str, Division | str]]:
    """The layers of a model that can be divided by name, and why others cannot.

    Nothing within a layer that says why it stays whole is divided either.
    """
    kept: list[str] = []
    for name, module in model.named_modules():
        if hasattr(module, "division") and not any(name.startswith(f"{one}.") for one in kept):
            found = module.division()
            if isinstance(found, str):
                kept.append(name)
            yield name, found


@functools.cache
def divisible(family: Family, config: Any) -> Divisible:
    """Of a configuration's model, of which nothing but the structure is built."""
    model = family.build(config)
    found = dict(divisions(model))
    layers = {name: each for name, each in found.items() if not isinstance(each, str)}
    reasons = dict.fromkeys(each for each in found.values() if isinstance(each, str))
    parameters = dict(model.named_parameters())
    cuts = {name: each.numbers(parameters[name]) for name, each in _cuts(layers).items()}
    in_blocks = sum(each for name, each in cuts.items() if name.startswith("blocks."))
    numbers = sum(each.numel() for each in parameters.values())
    whole = tuple(reasons)
    return Divisible(layers, whole, numbers, sum(cuts.values()), in_blocks, _together(model, whole))


def _together(model: nn.Module, whole: tuple[str, ...]) -> str:
    """Why every rank needs the whole sequence between the layers that are divided."""
    if whole:
        return whole[0]
    blocks = getattr(model, "blocks", None)
    if blocks is None or not hasattr(model, "stream"):
        return "the model is no stack of blocks around one stream"
    kinds = [type(block).__name__ for block in blocks if not getattr(block, "by_token", False)]
    return f"{kinds[0]} looks at the whole sequence between its layers" if kinds else ""


def divide(model: nn.Module, ranks: int, region: Region) -> dict[str, Cut]:
    """Narrow a structure, whose parameters hold no values, to one rank's share of every layer that
    can be divided, and let these meet in ``region``; returns where parameters are cut, by name.

    Raises ``ValueError`` where a layer does not divide evenly.
    """
    layers = {name: each for name, each in divisions(model) if not isinstance(each, str)}
    for name, division in layers.items():
        if division.count % ranks:
            raise ValueError(
                f"divide: {name} has {division.count} {division.what}, which {ranks} ranks do not "
                "divide evenly"
            )
        division.narrow(ranks)
        model.get_submodule(name).region = region  # type: ignore[assignment]
    cuts = _cuts(layers)
    for name, cut in cuts.items():
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path)
        old = module.get_parameter(own)
        made = nn.Parameter(cut.take(old.detach(), 0, ranks), requires_grad=old.requires_grad)
        setattr(module, own, keep_marks(old, made))
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
    return cuts


def _cuts(layers: Mapping[str, Division]) -> dict[str, Cut]:
    """By the parameter's name in the model."""
    return {
        f"{name}.{own}" if name else own: cut
        for name, division in layers.items()
        for own, cut in division.cuts.items()
    }
