"""One block of a paired comparison: steps of one arm without a pause, and if they are valid.

A block begins with a few steps that are not timed, because caches hold data of the other arm.
Nothing observes the block while it is timed; causes that make it void are read before and after.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch

from sessions.ceilings import impossible
from sessions.model import PairedComparison, Phase
from sessions.studies.attribution.estimation import WHOLE_STEP
from sessions.verdicts.statistics import MIN_BLOCK_MS, MIN_BLOCK_STEPS
from workbench import protocol
from workbench.runner.context import RunnerContext
from workbench.runner.instruments.clocks import moved
from workbench.runner.instruments.contention import BUSY, VOID
from workbench.runner.instruments.samplers import Sample
from workbench.runner.instruments.timing import Lap
from workbench.runner.interfaces import Situation
from workbench.runner.variants.backward_pass import Pace, backward_pass
from workbench.runner.variants.variant import Variant

SETTLING_STEPS = 2
LEAST_STEPS = 5  # fewest steps of a block, if the budget does not hold enough longer blocks
CLOCK_RANGE = 0.05  # largest relative change of the SM clock within a block
# NVML's reasons for a lower clock: hardware slowdown, thermal (software, hardware), power brake.
# A power cap is not one of them: it is usual under load, and cycles show its effect.
THROTTLED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


@dataclass
class Contender:
    """One side of a comparison; ``variant`` is None while its memory is freed for the others."""

    number: int
    copy: int  # 1 if both sides have the same configuration, so that it is built separately
    situation: Situation
    name: str
    title: str = ""  # distinguishes it; if empty, its configuration does
    segment: int = -1
    variant: Variant | None = None
    build_s: float = 0.0
    warm_up_s: float = 0.0
    step_ms: float = math.nan
    steps: int = MIN_BLOCK_STEPS  # steps of a block
    warm_up_steps: int = LEAST_STEPS  # steps of a block that warms up
    timed: str = WHOLE_STEP  # the part of a step that a block times
    diverged: bool = False  # the loss was not finite in some block
    least_ms: float = math.nan  # least time that a step can take on this device


@dataclass(frozen=True)
class TimedBlock:
    """A block that ran to its end."""

    median_ms: float
    clock_mhz: float | None
    void: str
    steps: int
    mean_ms: float
    diverged: bool = False  # the loss of its last step is not finite, or weights are not


def message_of(block: TimedBlock, arm: int, pair: int, build: int = 0) -> protocol.Block:
    """Return the part of a block that a comparison stores."""
    return protocol.Block(
        arm=arm,
        pair=pair,
        median_ms=block.median_ms,
        clock_mhz=block.clock_mhz,
        void=block.void,
        mean_ms=block.mean_ms,
        build=build,
    )


def comparison_of(blocks: list[protocol.Block]) -> PairedComparison:
    """Return the comparison of these blocks, without a judgement."""
    return PairedComparison(
        arms=[],
        order=[block.arm for block in blocks],
        medians_ms=[block.median_ms for block in blocks],
        ratio=math.nan,
        low=math.nan,
        high=math.nan,
        verdict="UNDECIDED",
        pairs=[block.pair for block in blocks],
        clocks_mhz=[math.nan if block.clock_mhz is None else block.clock_mhz for block in blocks],
        voids=[block.void for block in blocks],
        means_ms=[math.nan if block.mean_ms is None else block.mean_ms for block in blocks],
        builds=[block.build for block in blocks],
    )


def impossible_arm(contenders: list[Contender], blocks: list[protocol.Block]) -> str:
    """Return a clause that names an arm that is faster than the device can run it, else empty."""
    for contender in contenders:
        timed = [b.median_ms for b in blocks if b.arm == contender.number and not b.void]
        device_type = contender.situation.device.type
        if timed and (why := impossible(median(timed), contender.least_ms, device_type)):
            return f"{contender.name}: {why}"
    return ""


def block_steps(
    step_ms: float,
    budget_s: float,
    rounds: int,
    least_ms: float,
    arms: int = 2,
    least_steps: int = LEAST_STEPS,
) -> int:
    """Return the steps of a block: 20 and 50 ms at least, fewer if ``rounds`` would not fit."""
    share_ms = 1000 * budget_s / (arms * rounds)
    desired_steps = max(MIN_BLOCK_STEPS, math.ceil(max(MIN_BLOCK_MS, least_ms) / step_ms))
    affordable = int(share_ms / step_ms) - SETTLING_STEPS
    return max(min(desired_steps, affordable), least_steps, math.ceil(MIN_BLOCK_MS / step_ms))


def first_step(context: RunnerContext, variant: Variant) -> torch.Tensor:
    """Run the first step, in which compilation, capture and lazy allocations happen."""
    with variant.watched():
        variant.restart()
        context.clock.begin()
        output = variant.step()
        context.synchronize()
    context.clock.lap(context.phases.step_phase(time.perf_counter_ns()))
    variant.restart()
    context.send_steps(context.clock.drain(wait=True))
    return output


def settling_steps(steps: int) -> int:
    """Return the number of untimed steps before a block: 1 is enough if steps are long."""
    return SETTLING_STEPS if steps >= LEAST_STEPS else 1


def warm_up_block(context: RunnerContext, contender: Contender) -> TimedBlock | None:
    """Run a short block outside of the comparison; None if a command ended it early."""
    return run_block(context, dataclasses.replace(contender, steps=contender.warm_up_steps), 0)


def run_block(context: RunnerContext, contender: Contender, number: int) -> TimedBlock | None:
    """Run a block and send its steps; return None if a command ended it early.

    ``number`` counts the blocks of the comparison from 1; the steps of a block 0 are warm-up.
    """
    arm = contender.variant
    assert arm is not None
    context.segment = contender.segment
    context.set_variant(arm)
    with arm.entered():
        pace = _pace(arm, contender.timed)
        settle(context, pace, settling_steps(contender.steps))
        mark = context.clocks.mark()
        events, reserved = context.phases.events, context.memory.sample().reserved
        start_ns = time.perf_counter_ns()
        steps_run, output = _run(context, pace, contender.steps, MIN_BLOCK_MS if number else 0.0)
        laps = context.clock.drain(wait=True)
        clock_mhz = context.clocks.mean_mhz(mark, context.clocks.mark())
        stop_ns = time.perf_counter_ns()
    if steps_run < contender.steps:
        context.send_steps(_marked(laps, Phase.WARM_UP))
        return None
    void = ""
    phase = Phase.STEADY if number else Phase.WARM_UP
    if context.phases.events != events:
        phase = context.phases.last_event
        void = f"a {phase.title} happened during the block"
    elif not math.isnan(reserved) and context.memory.sample().reserved != reserved:
        phase = Phase.WARM_UP
        void = "the allocator reserved or released memory during the block"
    elif context.device.type == "cuda":
        samples = context.telemetry_between(start_ns, stop_ns)
        void = throttled(samples) or contended(samples)
        phase = Phase.WARM_UP if void else phase
    if contender.timed != WHOLE_STEP:
        phase = Phase.WARM_UP  # parts of steps are none of the segment's steady steps
    context.send_steps(_marked(laps, phase), block=number)
    times = [lap.step_ms for lap in laps]
    if clock_mhz is None:
        clock_mhz = context.sm_clock_mhz(start_ns, stop_ns)
    diverged = arm.trainer is not None and not math.isfinite(float(output))
    # All arms of a precision train the same weights: the others would be called wrong.
    diverged |= context.variants.restart_if_ruined(arm)
    return TimedBlock(median(times), clock_mhz, void, len(laps), fmean(times), diverged)


def settle(context: RunnerContext, pace: Pace, steps: int = SETTLING_STEPS) -> None:
    """Run some untimed steps of an arm: until then, caches contain data of another arm."""
    _run(context, pace, steps)
    context.send_steps(_marked(context.clock.drain(wait=True), Phase.WARM_UP))


def throttled(samples: list[Sample]) -> str:
    """Return why the clock of these samples makes a block void, or nothing."""
    bits = 0
    for sample in samples:
        bits |= int(sample.get("throttle", 0))
    reasons = dict.fromkeys(reason for bit, reason in THROTTLED.items() if bits & bit)
    if reasons:
        return f"the GPU's clock was throttled ({', '.join(reasons)})"
    clocks = [sample["sm_clock"] for sample in samples if sample.get("sm_clock")]
    if moved(clocks, CLOCK_RANGE):
        return f"the SM clock changed by more than {100 * CLOCK_RANGE:g} % during the block"
    return ""


def contended(samples: list[Sample]) -> str:
    """Return a clause if others worked on the GPU during these samples, or nothing."""
    return VOID if any(sample.get("others", 0.0) >= BUSY for sample in samples) else ""


def _pace(arm: Variant, timed: str) -> Pace:
    """Return the untimed function before each step, and the step that a block times."""
    return (arm.ready, arm.step) if timed == WHOLE_STEP else backward_pass(arm)


def _run(context: RunnerContext, pace: Pace, steps: int, least_ms: float = 0.0) -> tuple[int, Any]:
    """Run ``steps`` steps, or until a command waits; return their number and the last output.

    Continue until ``least_ms`` have passed or ``MIN_BLOCK_STEPS`` were made: the number of steps
    was planned from steps that may have been slower.
    """
    (ready, step), lap = pace, context.clock.lap
    phases, watchdog, wire = context.phases, context.watchdog, context.wire
    now_ns, steps_run, output = 0, 0, None
    until_ns = time.perf_counter_ns() + 1e6 * least_ms
    context.clock.begin()
    while steps_run < steps or (steps_run < MIN_BLOCK_STEPS and now_ns < until_ns):
        if wire.waiting:
            break
        if ready():
            context.clock.begin()
        output = None  # free it: the step may need its memory
        output = step()
        now_ns = watchdog.beat_ns = lap(phases.step_phase(now_ns))
        steps_run += 1
    return steps_run, output


def _marked(laps: list[Lap], phase: Phase) -> list[Lap]:
    return [lap._replace(phase=phase) for lap in laps]
