"""One forward, one backward: the order in which a stage takes the micro-batches of a batch.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
(arXiv 2104.04473), section 2.2 (PipeDream-Flush): a stage passes on as many micro-batches as there
are stages after it, then goes backward through one after each that it goes forward through, and at
last backward through the rest. So it holds the activations of no more micro-batches than there are
stages from it on, whatever their number m; with p stages each waits for (p - 1) of the (m + p - 1)
turns that a step has.

What is sent one way and received the other way at the same moment goes together, as two neighbours
that both sent first would wait for each other.

Each micro-batch costs the host what a whole batch costs one device: what can be done once is done
once a step, as is the division by their number, the scale, and autocast's casts of weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from models.parallel.pipeline_stages import Stage, StageOutput

BEFORE, AFTER = -1, 1  # of a stage's neighbours


class Link(ABC):
    """What connects a stage with the ones before and after it."""

    @abstractmethod
    def swap(self, sends: dict[int, Tensor], receives: list[int]) -> dict[int, Tensor]:
        """Send each tensor to the neighbour it goes by, while one is received of each of these."""


class _Passed(NamedTuple):
    """A micro-batch that went forward."""

    x: Tensor
    out: Tensor | None
    loss: Tensor | None


@dataclass
class Turns:
    """What a stage has done in one step."""

    forwards: int = 0
    backwards: int = 0
    held: int = 0  # micro-batches at most between their turns


class Schedule:
    """The turns of one of ``ranks`` stages, number ``rank``.

    ``compute(x, targets)`` is what the stage makes of a micro-batch, ``passed`` is called after
    each turn forward.
    """

    def __init__(
        self,
        stage: Stage,
        rank: int,
        ranks: int,
        link: Link,
        compute: Callable[[Tensor, Tensor], StageOutput],
        passed: Callable[[], None] = lambda: None,
    ) -> None:
        self._stage, self._link, self._compute = stage, link, compute
        self._after = ranks - 1 - rank
        self._passed = passed
        self.turns = Turns()

    def train(
        self, tokens: list[Tensor], targets: list[Tensor], scale: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The stage's part of the mean loss over all micro-batches, [], its gradients made.

        ``tokens`` and ``targets`` are those of each micro-batch, all of one shape; ``scale(loss)``
        is linear, and what the backward pass begins with.
        """
        # Autocast forgets its casts where the outermost region ends: here, and not each time that
        # ``compute`` returns. In between it is off, as it has to be in backward passes. On a GPU
        # these have a thread of their own, where what a checkpoint computes again is in no region
        # but its own: there the casts are forgotten with each block, as they would be without this.
        with torch.autocast(tokens[0].device.type, enabled=False):
            losses = self._take_turns(tokens, targets, scale)
        if not losses:
            return torch.zeros((), device=tokens[0].device)
        return torch.stack(losses).sum() / len(tokens)

    def _take_turns(
        self, tokens: list[Tensor], targets: list[Tensor], scale: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """All turns of a step; the losses of the micro-batches."""
        count, waiting, losses = len(tokens), deque[_Passed](), list[Tensor]()
        self.turns = Turns()
        ahead = min(self._after, count)
        share: Tensor | None = None  # of the mean's gradient that each loss has

        def forward(number: int, x: Tensor | None) -> Tensor | None:
            one = self._forward(tokens[number] if x is None else x, targets[number])
            waiting.append(one)
            self.turns.held = max(self.turns.held, len(waiting))
            if one.loss is not None:
                losses.append(one.loss.detach())
            return one.out

        def backward(gradient: Tensor | None) -> Tensor | None:
            nonlocal share
            if share is None and losses:
                share = scale(torch.ones_like(losses[0])) / count
            return self._backward(waiting.popleft(), gradient, share)

        for number in range(ahead):
            out = forward(number, self._swap(receive=(BEFORE,)).get(BEFORE))
            self._swap(after=out)
        x = self._swap(receive=(BEFORE,) if ahead < count else ()).get(BEFORE)
        for number in range(ahead, count):
            out = forward(number, x)
            gradient = self._swap(after=out, receive=(AFTER,)).get(AFTER)
            del out
            back = backward(gradient)
            x = self._swap(before=back, receive=(BEFORE,) if number + 1 < count else ()).get(BEFORE)
        for _ in range(ahead):
            self._swap(before=backward(self._swap(receive=(AFTER,)).get(AFTER)))
        return losses

    def forward(
        self, tokens: list[Tensor], targets: list[Tensor], keep: Callable[[StageOutput], None]
    ) -> None:
        """Go forward alone, with what each micro-batch gives to ``keep``."""
        for number, own in enumerate(tokens):
            x = self._swap(receive=(BEFORE,)).get(BEFORE)
            one = self._forward(own if x is None else x, targets[number])
            keep(StageOutput(one.out, one.loss))
            self._swap(after=one.out)

    def _forward(self, x: Tensor, targets: Tensor) -> _Passed:
        if not self._stage.first:
            x.requires_grad_()
        found = self._compute(x, targets)
        self.turns.forwards += 1
        self._passed()
        return _Passed(x, found.x, found.loss)

    def _backward(
        self, one: _Passed, gradient: Tensor | None, share: Tensor | None
    ) -> Tensor | None:
        """The gradient of what came in; None of the first stage, which takes tokens.

        ``gradient`` is that of the output, ``share`` that of the loss.
        """
        ends = [(one.out, gradient), (one.loss, share)]
        roots, gradients = zip(*(each for each in ends if each[0] is not None), strict=True)
        torch.autograd.backward(roots, gradients)
        self.turns.backwards += 1
        return None if self._stage.first else one.x.grad

    def _swap(
        self,
        *,
        before: Tensor | None = None,
        after: Tensor | None = None,
        receive: tuple[int, ...] = (),
    ) -> dict[int, Tensor]:
        """With the neighbours that there are."""
        sends = {BEFORE: before, AFTER: after}
        there = {BEFORE: not self._stage.first, AFTER: not self._stage.last}
        return self._link.swap(
            {to: one.detach() for to, one in sends.items() if one is not None and there[to]},
            [each for each in receive if there[each]],
        )
