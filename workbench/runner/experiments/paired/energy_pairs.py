"""Joules a step of two contenders: pairs of blocks that are long enough for the energy counter."""

from __future__ import annotations

import dataclasses
import math
import random

from sessions.model import EnergyPairs
from sessions.verdicts.energy import judge_energy
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.blocks import Contender
from workbench.runner.experiments.paired.interleaving import Alternation
from workbench.runner.instruments.energy import EnergyCounter, PowerMeter
from workbench.runner.toggles._ranks import layout_of

PAIRS = 8
BLOCK_S = 0.6  # the counter lags behind by a sixth of it
LEAST_PAIRS = 6
TRIES = 3  # a block is repeated if it is void, the counter changed too seldom, or a command came


def measure_energy(
    context: RunnerContext, alternation: Alternation, budget_s: float, shuffled: random.Random
) -> EnergyPairs:
    """Run pairs of long blocks for up to ``budget_s``; return why not if that is impossible."""
    counters = {
        contender.number: EnergyCounter(context.device, layout_of(contender.situation).ranks)
        for contender in alternation.contenders
    }
    if why_not := next((c.why_not for c in counters.values() if c.why_not), ""):
        return EnergyPairs(why_not=why_not)
    if alternation.alone:
        return EnergyPairs(why_not="the two arms do not fit in memory together")
    pair_s = sum(_block_seconds(contender.step_ms) for contender in alternation.contenders)
    count = min(PAIRS, int(budget_s / pair_s))
    if count < LEAST_PAIRS:
        return EnergyPairs(
            why_not=f"{LEAST_PAIRS} pairs of long blocks need {LEAST_PAIRS * pair_s:.0f} s, but "
            f"only {budget_s:.0f} s are available"
        )
    context.state("running", "Measuring the energy of A and B")
    joules = []
    for _ in range(count):
        order = list(alternation.contenders)
        shuffled.shuffle(order)
        pair = {
            contender.number: _joules(context, alternation, counters[contender.number], contender)
            for contender in order
        }
        if all(map(math.isfinite, pair.values())):
            joules.append([pair[0], pair[1]])
    if not joules:
        why_not = "every block was void, or the energy counter changed too seldom in it"
        return EnergyPairs(why_not=why_not)
    return judge_energy(joules)


def _block_seconds(step_ms: float) -> float:
    return max(BLOCK_S, blocks.LEAST_STEPS * step_ms / 1000)


def _joules(
    context: RunnerContext, alternation: Alternation, counter: EnergyCounter, contender: Contender
) -> float:
    """Return the joules of a step; NaN if no block could be measured."""
    steps = max(blocks.LEAST_STEPS, math.ceil(1000 * BLOCK_S / contender.step_ms))
    for attempt in range(TRIES):
        alternation.handle_commands()
        longer = dataclasses.replace(contender, steps=steps << attempt)
        with PowerMeter(counter) as meter:
            block = blocks.run_block(context, longer, 0)
        watts = meter.watts()
        if block is not None and not block.void and math.isfinite(watts):
            return watts * block.mean_ms / 1000
    return math.nan
