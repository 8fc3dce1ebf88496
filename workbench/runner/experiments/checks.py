"""Checks of the validation checklist: each examines a built variant and returns a result."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from models import Model
from sessions.numbers import counted
from sessions.sizes import size_text
from sessions.studies.checklist import FAIL, NOT_APPLICABLE, NOT_CHECKED, PASS, UNDECIDED
from workbench.runner.building.graph_pools import resident_bytes
from workbench.runner.config.estimate import footprint
from workbench.runner.failures import explain, is_fatal
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.numerics import comparison
from workbench.runner.profiling.probes import allocations, graphs, syncs
from workbench.runner.profiling.probes.graphs import Break
from workbench.runner.training.optimizers import moments, parts
from workbench.runner.training.trainer import Trainer
from workbench.runner.variants.compiles import Compiles
from workbench.runner.variants.variant import Variant

SYNC_STEPS = 2  # dispatched past a mode, each operation costs tens of microseconds
ESTIMATE_FACTOR = 2.0  # the memory may exceed its estimate by this factor
# A graph's pool holds complete segments: 2 MiB for small tensors, 20 MiB for large ones.
SEGMENTS_BYTES = 22 << 20


@dataclass(frozen=True)
class Result:
    """Result of one check; ``lines`` are the source lines that it points at."""

    status: str
    evidence: str
    lines: list[str] = field(default_factory=list)


def passed(evidence: str) -> Result:
    """Return the result of a check that holds, with the evidence."""
    return Result(PASS, evidence)


def fails(evidence: str, lines: list[str] | None = None) -> Result:
    """Return the result of a check that fails, or could not be shown to hold."""
    return Result(FAIL, evidence, lines or [])


def undecided(evidence: str) -> Result:
    """Report that too little was measured to tell."""
    return Result(UNDECIDED, evidence)


def not_applicable(evidence: str) -> Result:
    """Report that there is nothing to check, and why."""
    return Result(NOT_APPLICABLE, evidence)


def right_numbers(variant: Variant, between: comparison.Between = comparison.go_on) -> Result:
    """Check outputs, and in training losses, against the reference; ``between`` as there."""
    with variant.entered():
        step(variant, variant.steps_to_settle())
    numerics = comparison.check(variant, variant.situation, between)
    if numerics.ok is None:
        return Result(NOT_CHECKED, numerics.text.removeprefix("not checked: "))
    text = f"against {numerics.reference}: {numerics.text}"
    return passed(text) if numerics.ok else fails(text)


def no_syncs(variant: Variant) -> Result:
    """Check that nothing in a step makes the host wait for the device."""
    device = variant.situation.device
    with variant.entered():
        on_host = variant.trainer.on_host() if variant.trainer is not None else ()
        with syncs.watching(
            device, on_host, compiled=is_compiled(variant.situation, variant.compiles)
        ) as waits:
            step(variant, SYNC_STEPS)
    if waits:
        total = sum(waits.values()) / SYNC_STEPS
        lines = [str(line) for line, _ in waits.most_common()]
        often = "once" if total == 1 else f"{total:g} times"
        return fails(f"the host waits, or would on a GPU, {often} per step", lines)
    if variant.situation.on_gpu:
        return passed(f"CUDA reported no synchronizing operation in {SYNC_STEPS} steps")
    hidden = (
        "; compiled code was not inspected"
        if is_compiled(variant.situation, variant.compiles)
        else ""
    )
    return passed(f"no operation in {SYNC_STEPS} steps would wait on a GPU{hidden}")


def fixed_graph(
    variant: Variant, breaks: list[Break], events: Callable[[], int], steps: Callable[[], int]
) -> Result:
    """Check that the step is compiled or captured once, and without graph breaks.

    ``breaks`` are those of the first step. ``events`` returns the number of compilations and
    captures so far. ``steps`` runs some steps and returns their number.
    """
    captured = variant.situation.has(Trait.CAPTURED)
    if not captured and not is_compiled(variant.situation, variant.compiles):
        return _if_it_were_compiled(variant)
    before, known = events(), len(variant.compiles.recompiles)
    count = steps()
    recompiles = variant.compiles.recompiles[known:]
    if events() != before or recompiles or variant.compiles.given_up:
        return fails(
            f"compiled or captured {counted(events() - before, 'more time')} "
            f"in {counted(count, 'step')} after the first",
            list(dict.fromkeys(recompiles + variant.compiles.given_up)),
        )
    if breaks:
        number = counted(len(breaks), "graph break")
        return fails(f"{number} in the first step", [str(break_) for break_ in breaks])
    description = (
        "compiled without a graph break"
        if is_compiled(variant.situation, variant.compiles)
        else "captured"
    )
    return passed(
        f"{description} in the first step, and not again in {counted(count, 'more step')}"
    )


def _if_it_were_compiled(variant: Variant) -> Result:
    nothing = "nothing is compiled or captured"
    batch = variant.batches.inputs + (
        variant.batches.targets if variant.situation.workload.trains else ()
    )
    if variant.situation.workload.decodes:
        return not_applicable(nothing)
    try:
        trains = variant.situation.workload.trains
        with variant.entered(), variant.restored(), torch.set_grad_enabled(trains):
            traced = graphs.trace(variant.compute, batch)
    except Exception as error:
        if is_fatal(error):
            raise
        return not_applicable(f"{nothing}; torch.compile would fail: {explain(error).sentence}")
    would = f"torch.compile would make {counted(traced.graphs, 'graph')}"
    breaks = counted(len(traced.breaks), "graph break")
    result = not_applicable(f"{nothing}; {would}, with {breaks}")
    return Result(result.status, result.evidence, [str(break_) for break_ in traced.breaks])


def steady_memory(variant: Variant, steps: int) -> Result:
    """Check that steps leak no memory, and need about as much as was estimated."""
    half = max(2, steps // 2)
    with variant.entered():
        step(variant, 2)  # lazy allocations of the first steps are no leak
        first, second = (
            allocations.of(lambda: step(variant, half), variant.situation.device) for _ in range(2)
        )
        standing = _standing_bytes(variant.model, variant.trainer)
    if first.left > 0 and second.left > 0:
        return fails(
            f"each step leaks {second.left / half:,.0f} bytes: {first.left:,} after {half} steps, "
            f"{first.left + second.left:,} after {2 * half}"
        )
    text = f"{2 * half} steps leak no memory"
    estimate = footprint(variant.situation)
    if estimate is None:
        return passed(f"{text}; there is no estimate for this model")
    pools = resident_bytes(variant)
    measured = standing + max(first.highest, second.highest) + pools
    # Neither is measured, except workspaces in a pool of graphs, which are half of them.
    unmeasured = estimate.cache + estimate.workspaces // (2 if pools else 1)
    estimated = estimate.total - unmeasured
    text += (
        f"; the peak is {size_text(measured)}, {measured / estimated:.2f} times the estimate of "
        f"{size_text(estimated)}"
    )
    if measured > ESTIMATE_FACTOR * estimated + (SEGMENTS_BYTES if pools else 0):
        return fails(f"{text}, at most {ESTIMATE_FACTOR:g} times is expected")
    return passed(text)


def _standing_bytes(model: Model, trainer: Trainer | None) -> int:
    """Return the bytes between steps: weights, buffers, optimizer; caches are not counted."""
    tensors = (*model.parameters(), *model.buffers())
    sizes = {part.data_ptr(): part.nbytes for tensor in tensors for part in parts(tensor)}
    if trainer is None:
        return sum(sizes.values())
    return sum(sizes.values()) + moments(trainer.optimizer).bytes


def is_compiled(situation: Situation, compiles: Compiles) -> bool:
    """Return True if torch.compile was requested, or an operator compiles its own function."""
    return situation.has(Trait.COMPILED) or compiles.graphs > 0


def step(variant: Variant, count: int) -> None:
    """Run ``count`` steps without timing; call it inside ``variant.entered()``."""
    for _ in range(count):
        variant.ready()
        variant.step()
    gc.collect()  # cycles that wait for the collector are no leak
