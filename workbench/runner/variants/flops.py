"""The FLOPs that a model's mathematics needs for one step, by its family's formula.

A user's model has no formula: torch counts its products in the first step, where
that is one plain step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
    from torch.utils.flop_counter import FlopCounterMode

    flop_formulas.register()
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()
    with eager(), counter:  # what the file compiles itself cannot be traced while torch counts
        yield
    if flops := counter.get_total_flops():
        counted["model_flops"] = flops
