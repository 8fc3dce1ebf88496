"""The FLOPs that a model's mathematics needs for one step, by its family's formula.

A user's model has no formula: torch counts its products in the first step, where
that is one plain step.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

from sessions.model import Scalar
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.profiling.eager import eager
from workbench.runner.roofline import flop_formulas


class _NoModules(contextlib.nullcontext[None]):
    """A tracker of modules for torch's counter that watches none and counts everything.

    Torch's own tracker registers hooks on gradients. They break a step that calls
    ``torch.autograd.grad``: gradient penalties, forces, meta-learning.
    """

    parents = frozenset(("Global",))


class _Mode(_FlopCounterMode):
    """Torch's mode, which lets operators of jagged tensors fail; these run uncounted."""

    counter: _Counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__module__.startswith("torch.nested.") for kind in types):
            self.counter.is_incomplete = True
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Counter(FlopCounterMode):
    """A counter of the model: without optimizers' updates, and what checkpoints compute again.

    Nodes of a backward pass record no gradients, unless it is to be differentiated itself.
    """

    _in_plain_backward = False
    _updates = 0  # steps of optimizers that run
    is_incomplete = False  # operators ran that could not be counted

    def __enter__(self) -> _Counter:
        super().__enter__()
        self.mode: Any  # torch's dispatch mode, replaced by ours
        self.mode.__exit__(None, None, None)
        self.mode = _Mode(self)
        self.mode.__enter__()
        return self

    @contextlib.contextmanager
    def watching_backward(self) -> Iterator[None]:
        """Record inside the block whether a backward pass runs that is not differentiated."""
        backward = torch.autograd.backward
        signature = inspect.signature(backward)

        def watched(*args: Any, **kwargs: Any) -> None:
            before = self._in_plain_backward
            given = signature.bind(*args, **kwargs).arguments
            self._in_plain_backward = not given.get("create_graph")
            try:
                backward(*args, **kwargs)
            finally:
                self._in_plain_backward = before

        torch.autograd.backward = watched
        try:
            yield
        finally:
            torch.autograd.backward = backward

    @contextlib.contextmanager
    def watching_updates(self) -> Iterator[None]:
        """Record inside the block whether an optimizer steps, but not where it calls a closure.

        The products of an update (Muon's, for example) are no work of the model; those of the loss
        that a closure computes are.
        """

        def began(_: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            self._updates += 1
            args = (args[0], *(self._counted(v) if callable(v) else v for v in args[1:]))
            if callable(closure := kwargs.get("closure")):
                kwargs = {**kwargs, "closure": self._counted(closure)}
            return args, kwargs

        def ended(*_: Any) -> None:
            self._updates -= 1

        hooks = (
            register_optimizer_step_pre_hook(began),
            register_optimizer_step_post_hook(ended),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _counted(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def counted() -> Any:
            before, self._updates = self._updates, 0
            try:
                return closure()
            finally:
                self._updates = before

        return counted

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if self._updates:
            return out
        in_node = torch._C._current_autograd_node() is not None
        if self._in_plain_backward and in_node and torch.is_grad_enabled():
            return out
        return super()._count_flops(func_packet, out, args, kwargs)


def model_flops(situation: Situation) -> dict[str, Scalar]:
    """Return ``model_flops`` of a step, for the ledger; empty if it is unknown."""
    family, workload = situation.family, situation.workload
    if situation.is_own_model:
        return {}
    settings = situation.configuration.settings
    batch, sequence = int(settings["batch"]), int(settings["sequence"])
    if workload.decodes:  # on average, half of the new tokens are in the cache as well
        context = sequence + int(settings["new_tokens"]) // 2
        return {"model_flops": family.flops(situation.config, batch, 1, context=context)}
    last = workload.name == "prefill"
    return {
        "model_flops": family.flops(
            situation.config, batch, sequence, training=workload.trains, last_only=last
        )
    }


@contextlib.contextmanager
def counting_flops(situation: Situation, counted: dict[str, Scalar]) -> Iterator[None]:
    """Count the FLOPs of a user's model in its first step into ``counted``.

    Compiled or captured, the first step is no plain one: its FLOPs stay unknown.
    """
    plain = not situation.has(Trait.COMPILED, Trait.CAPTURED)
    if not situation.is_own_model or not plain:
        yield
        return
    flop_formulas.register()
    counter = _Counter(display=False)
    counter.mod_tracker = _NoModules()
    # Code that the user's file compiles cannot be traced while torch counts.
    with eager(), counter.watching_backward(), counter.watching_updates(), counter:
        yield
    if (flops := counter.get_total_flops()) and not counter.is_incomplete:
        counted["model_flops"] = flops
