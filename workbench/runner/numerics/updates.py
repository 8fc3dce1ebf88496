"""A check that training moved a variant's weights as far as it should.

A loss that hardly moves in a few steps hides a wrong or missing update. So the weight updates are
compared with a standard's, for each parameter group of the optimizer. Their projection on the
standard's updates is 1 if all is right, 0 without an update, 0.5 if half of the weights do not
change, -1 with the wrong sign, and 10 at ten times the learning rate. And no tensor may move far
less than it should.

The standard is the reference, unless the plain model in the variant's precision does not follow it:
in 16 bits, most of an update is less than half of a weight's last digit and is rounded away. Then
the standard is the plain model; a run with the rows in another order measures how much its updates
vary by chance. If the remaining updates are too small to show a missing half, the result is "not
checked".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from sessions.numbers import counted

WeightUpdates = Mapping[int, Tensor]  # updates by the id of the variant's parameter
Groups = Sequence[Sequence[int]]  # the optimizer's, of such addresses

FOLLOWS = 0.1  # largest distance from 1 of a plain model's projection that follows the reference
SHORT = 0.1  # share of the reference's steps
COARSE = 0.25  # allowed for updates in 16 bits, which vary by chance, and for 8-bit moments
LARGEST = 0.4  # a bound beyond it would let half of an update pass
_LEAST_MOVED = 64  # elements; half of them show a missing half
_LEAST_OF_TENSOR = 16  # elements that cannot stand still by chance
_LEAST_SEEN = 100  # elements that moved of one tensor, to judge by how far
_FAR = 0.6  # share of the plain model's distance


@dataclass(frozen=True)
class Projection:
    """The projection of weight updates on the standard's; ``allowed`` is the distance from 1."""

    name: str  # the name of the weights
    value: float
    allowed: float
    standard: str = "reference"

    @property
    def ok(self) -> bool:
        """True if the projection is within its bound; False if it is not finite."""
        return abs(self.value - 1) <= self.allowed

    @property
    def text(self) -> str:
        """The projection and its bound, in words."""
        return (
            f"update of {self.name}: {self.value:.2f} x the {self.standard}'s, "
            f"{max(0.0, 1 - self.allowed):.2f} to {1 + self.allowed:.2f} expected"
        )


@dataclass(frozen=True)
class Updates:
    """The projections of groups and tensors; ``unclear``: why they prove nothing, if so."""

    projections: Sequence[Projection]
    unclear: str = ""

    @property
    def ok(self) -> bool:
        """True if every projection is within its bound."""
        return all(projection.ok for projection in self.projections)

    @property
    def text(self) -> str:
        """The worst projection in words."""
        return max(self.projections, key=lambda projection: _badness(projection)).text


def follows(plain: WeightUpdates, reference: WeightUpdates, groups: Groups) -> bool:
    """Return True if the plain model's updates follow the reference's."""
    return all(abs(project(plain, reference, group) - 1) <= FOLLOWS for group in groups)


def against_reference(
    actual: WeightUpdates,
    plain: WeightUpdates,
    reference: WeightUpdates,
    groups: Groups,
    short: float,
) -> Updates:
    """Compare the updates with the reference's, which the plain model follows.

    ``short``: the error that the variant's optimizer may add to a projection.
    """
    projections = []
    for number, group in enumerate(groups, 1):
        expected = abs(project(plain, reference, group) - 1)
        allowed = min(short + 2 * expected, LARGEST)
        projections.append(
            Projection(_name(number, groups), project(actual, reference, group), allowed)
        )
    return Updates(projections)


def against_plain(
    actual: WeightUpdates, plain: WeightUpdates, reordered: WeightUpdates | None, groups: Groups
) -> Updates:
    """Compare with the plain model's updates; ``reordered`` are its updates with reordered rows."""
    projections, unclear = [], ""
    for number, group in enumerate(groups, 1):
        noise = 0.0 if reordered is None else abs(project(reordered, plain, group) - 1)
        allowed, name = COARSE + 2 * noise, _name(number, groups)
        moved = sum(int((plain[parameter] != 0).sum()) for parameter in group)
        if moved < _LEAST_MOVED:
            unclear = (
                f"the variant's precision rounds away the update of {name}: it changes "
                f"only {counted(moved, 'element')}"
            )
        elif not allowed <= LARGEST:
            unclear = f"after rounding, the update of {name} varies too much by chance"
        projections.append(
            Projection(name, project(actual, plain, group), min(allowed, LARGEST), "plain model")
        )
    return Updates(projections, unclear)


def of_tensors(
    named: Iterable[tuple[str, nn.Parameter]],
    actual: WeightUpdates,
    plain: WeightUpdates,
    reference: WeightUpdates,
) -> list[Projection]:
    """Return the projections of tensors that did not change, or changed far too little."""
    projections = []
    for name, parameter in named:
        key = id(parameter)
        if key not in plain or parameter.numel() < _LEAST_OF_TENSOR:
            continue
        moved = int((plain[key] != 0).sum())
        if 2 * moved > parameter.numel() and not bool(actual[key].any()):
            projections.append(Projection(name, 0.0, COARSE, "plain model"))
            continue
        lengths = [float(steps[key].abs().sum()) for steps in (actual, plain, reference)]
        # If the reference hardly moves, the gradient is only rounding.
        if moved >= _LEAST_SEEN and lengths[2] > lengths[1] / 2:
            ratio = lengths[0] / lengths[1]
            if ratio < _FAR:
                projections.append(Projection(name, ratio, 1 - _FAR, "plain model"))
    return projections


def project(steps: WeightUpdates, standard: WeightUpdates, group: Sequence[int]) -> float:
    """Return the projection of updates on a standard's, relative to the standard's length."""
    along, length = (
        sum(
            float((moves[parameter].double() * standard[parameter].double()).sum())
            for parameter in group
        )
        for moves in (steps, standard)
    )
    if length:
        return along / length
    return math.nan if any(bool(steps[parameter].any()) for parameter in group) else 1.0


def _name(number: int, groups: Groups) -> str:
    return "the weights" if len(groups) == 1 else f"the weights of group {number}"


def _badness(projection: Projection) -> float:
    excess = abs(projection.value - 1) - projection.allowed
    return excess if math.isfinite(excess) else math.inf
