"""A run that attributes a speed-up to toggles: a base and arms with toggles, in random rounds.

Each arm is first examined by itself: its numbers, its evidence, and on a GPU the peak memory of its
steps with nothing else in memory. Then all arms alternate: a round runs every arm once in random
order. Effects are sent after each round, so that a stop or a kill loses no measurement. An arm that
cannot be built, takes too long to build or does not fit in memory has a reason instead of numbers.
"""

from __future__ import annotations

import functools
import gc
import math
import random
from collections.abc import Callable, Sequence

import msgspec

from models import ConfigurationError
from sessions.columns import TableColumns
from sessions.model import Scalar
from sessions.numbers import counted
from sessions.studies.attribution import design, estimation
from sessions.studies.attribution.rows import Arm, arm_rows, effect_rows
from sessions.verdicts import verdict
from sessions.verdicts.work import SAME_MODEL
from workbench import protocol
from workbench.runner.building.labels import label
from workbench.runner.building.paths import path_text
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.model_digest import difference_of_situations
from workbench.runner.config.resolve import resolve
from workbench.runner.config.values import check_comparison, check_seconds, known
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.blocks import Contender, TimedBlock
from workbench.runner.experiments.paired.interleaving import Alternation
from workbench.runner.experiments.run import RunEnded
from workbench.runner.experiments.study_sender import Facts, StudySender, verdict_facts
from workbench.runner.failures import Cancelled, Explained, Mistake, explain, is_fatal, name_outcome
from workbench.runner.instruments.memory import free_memory
from workbench.runner.interfaces import Situation
from workbench.runner.toggles import all_toggles

HOPELESS_ROUNDS = 8  # the run ends after so many rounds without a complete pair of blocks
MOST_ORDERS = 64
LOOKING = 2 / 3  # share of the build time for the first builds, if every arm is built again later
COUNTED = (
    "counted by the allocator for one arm at a time; exactly repeatable, so without an interval"
)
NOT_COUNTED = "not measured: on the CPU, the memory of a single arm cannot be counted"


class AttributeRun:
    """Alternates all arms until every effect is settled, time is spent, or a command ends it."""

    def __init__(self, context: RunnerContext, command: protocol.Attribute) -> None:
        self._context = context
        self._command = command
        self._random = random.Random(command.seed)
        self._alternation = Alternation(
            context,
            command.budget_s,
            2 * verdict.MIN_PAIRS,
            "Configurations are being compared; stop before changing one.",
        )
        self._alternation.when_alone = lambda: self._study.facts(**self._alternation.rebuilding())
        self._names: list[str] = []  # toggles that can be used
        self._blocked: dict[str, str] = {}
        self._can_be: Callable[[design.Subset], bool] = bool  # a subset holds indices of the names
        self._orders: list[tuple[int, ...]] = []
        self._arms: list[Arm] = []
        self._study = StudySender(context)
        self._began = 0.0
        self._building_since = 0.0
        self._blocks: list[tuple[int, int, TimedBlock]] = []  # round, arm, block
        self._effects: list[estimation.Effect] = []

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._alternation.steps

    def execute(self) -> None:
        """Measure to the end; raises ``Mistake``, ``Cancelled``, ``RunEnded`` or what failed."""
        self._announce(self._prepare())
        self._building_since = self._alternation.now()
        try:
            self._look_at_all()
            self._build_all()
            self._measure()
        finally:
            self._context.watchdog.active = False
            self._report(final=True)

    # Preparation

    def _prepare(self) -> Situation:
        """Check the request, and choose the arms; return the base."""
        command, context = self._command, self._context
        check_comparison(command)
        if command.build_s is not None:
            check_seconds("build_s", command.build_s)
        if not 1 <= command.orders <= MOST_ORDERS:
            raise Mistake(f"orders = {command.orders} is outside of 1 to {MOST_ORDERS}")
        (base,) = context.resolve(command.base)
        if command.timed == estimation.BACKWARD and not base.workload.trains:
            raise Mistake("timed: only a training step has a backward pass; choose workload train")
        self._check_names(base)
        self._find_usable(base)
        count = len(self._names)
        if command.mode == "shapley" and count:
            self._orders = design.sampled_orders(count, command.orders, command.seed, self._can_be)
        try:
            subsets = design.subsets(command.mode, count, self._orders, self._can_be)
        except ValueError as error:
            reasons = "; ".join(f"{name}: {why}" for name, why in self._blocked.items())
            raise Mistake(f"{error}{'; ' if reasons else ''}{reasons}") from None
        for number, subset in enumerate(subsets):
            self._add_arm(base, number, subset)
        context.variants.keep_only(
            *(contender.situation for contender in self._alternation.contenders)
        )
        return base

    def _check_names(self, base: Situation) -> None:
        for name, option in self._command.toggles.items():
            toggle = known("toggle", name, all_toggles())
            known(f"toggle {name}", option, toggle.options)
            if base.option(name) == option:
                raise Mistake(f"toggle {name}: the base already has {option!r}; leave it out")

    def _find_usable(self, base: Situation) -> None:
        """Find the toggles that can be used together, in any order, and why others cannot."""

        @functools.cache
        def why_not(names: frozenset[str]) -> str:
            try:
                self._situation(base, sorted(names))
            except (Mistake, ConfigurationError) as error:
                return str(error)
            return ""

        requested = self._command.toggles
        catalogue = [name for name in all_toggles() if name in requested]
        usable = design.in_turn(catalogue, lambda names: not why_not(names))
        self._names = [name for name in requested if name in usable]
        self._blocked = {
            name: why_not(frozenset([*usable, name])) for name in requested if name not in usable
        }
        self._can_be = lambda chosen: (
            not why_not(frozenset(self._names[toggle] for toggle in chosen))
        )

    def _situation(self, base: Situation, names: Sequence[str]) -> Situation:
        chosen = {name: self._command.toggles[name] for name in names}
        toggles = {**base.configuration.toggles, **chosen}
        situation = resolve(
            msgspec.structs.replace(base.configuration, toggles=toggles), self._context.device
        )
        require_unblocked(situation)
        return situation

    def _add_arm(self, base: Situation, number: int, subset: design.Subset) -> None:
        names = [self._names[toggle] for toggle in sorted(subset)]
        arm = Arm(subset, self._title(names))
        self._arms.append(arm)
        try:
            situation = self._situation(base, names)
        except (Mistake, ConfigurationError) as error:
            arm.state, arm.reason = "blocked", str(error)
        else:
            contender = Contender(number, 0, situation, f"arm {number}", arm.title)
            contender.timed = self._command.timed
            self._alternation.contenders.append(contender)

    def _same_model(self, base: Situation) -> list[Scalar]:
        """Return the toggles of other models whose option is the base's own field."""
        return [
            name
            for number, name in enumerate(self._names)
            if all_toggles()[name].makes_other_model
            and self._can_be(frozenset([number]))
            and not difference_of_situations(base, self._situation(base, [name]))[0]
        ]

    def _title(self, names: Sequence[str]) -> str:
        if not names:
            return "base"
        toggles = self._command.toggles
        if self._command.mode == "ladder":
            return f"+ {names[-1]}={toggles[names[-1]]}"
        left_out = [name for name in self._names if name not in names]
        if self._command.mode == "leave-one-out":
            return f"all but {' and '.join(left_out)}" if left_out else "all"
        return ", ".join(f"{name}={toggles[name]}" for name in names)

    def _announce(self, base: Situation) -> None:
        context, command = self._context, self._command
        configuration = base.configuration
        request: Facts = {
            "family": configuration.family,
            "preset": configuration.preset,
            "workload": configuration.workload,
            "mode": command.mode,
            "toggles": [f"{name}={option}" for name, option in command.toggles.items()],
            **verdict_facts(command),
        }
        if command.timed != estimation.WHOLE_STEP:
            request["timed"] = command.timed
        if self._orders:
            request["orders"] = len(self._orders)
        if same := self._same_model(base):
            request[SAME_MODEL] = same
        title = f"{configuration.title}: {command.mode}"
        if command.timed == estimation.BACKWARD:
            title += " of the backward pass"
        self._study.begin("attribution", title, request)
        if self._blocked:
            options = [f"{name}={command.toggles[name]}" for name in self._blocked]
            rows: TableColumns = {"toggle": [*options], "reason": [*self._blocked.values()]}
            self._study.rows("blocked", rows)
        self._study.facts(
            memory=COUNTED if self._counts_memory else NOT_COUNTED,
            base=label(base.configuration, context.device),
        )

    # Measuring

    @property
    def _counts_memory(self) -> bool:
        return self._context.device.type == "cuda"

    def _look_at(self, contender: Contender) -> None:
        """Build an arm and collect the facts that cannot be measured while arms alternate."""
        arm, alternation = self._arms[contender.number], self._alternation
        alternation.begin(contender)
        alternation.settle(contender)
        assert contender.variant is not None
        arm.evidence = contender.variant.find_evidence()
        arm.numerics = alternation.check(contender)
        self._note_path(contender)
        if self._counts_memory:
            arm.peak_bytes = self._peak(contender)

    def _look_at_all(self) -> None:
        """Examine each arm; on a GPU it is alone in memory, so that the peak is its own."""
        alternation = self._alternation
        share = LOOKING if self._counts_memory else 1.0
        for contender in list(alternation.contenders):
            if self._leave_out(contender, share):
                continue
            alternation.alone = self._counts_memory or alternation.alone
            self._guard(contender, self._look_at)
            if self._counts_memory:
                alternation.alone = False
                alternation.forget()
            self._send_arms()

    def _leave_out(self, contender: Contender, share: float) -> bool:
        """Return True if the time for building is over; the base is built in any case."""
        if self._command.build_s is None or contender.number == 0:
            return False
        allowed_s = share * self._command.build_s
        spent_s = self._alternation.now() - self._building_since
        if spent_s < allowed_s:
            return False
        arm = self._arms[contender.number]
        arm.state = "not built"
        note = "; the rest is reserved for building them again" if share < 1 else ""
        arm.reason = (
            f"building earlier arms took {spent_s:.0f} s, {allowed_s:.0f} s are allowed{note}"
        )
        contender.variant = None
        self._alternation.contenders.remove(contender)
        return True

    def _peak(self, contender: Contender) -> float:
        """Return the peak memory of a few steps."""
        context = self._context
        context.memory.new_phase()
        blocks.warm_up_block(context, contender)
        self._alternation.handle_commands()
        return context.memory.sample().peak

    def _guard(self, contender: Contender, act: Callable[[Contender], None]) -> None:
        """Call ``act`` for an arm; if it fails or does not fit, the arm gets a reason instead."""
        alternation = self._alternation
        alone = alternation.alone
        try:
            act(contender)
            return
        except Exception as error:
            if isinstance(error, (Cancelled, RunEnded)) or is_fatal(error):
                raise
            failure = explain(error)
        # Outside of the except clause: its traceback would keep the tensors of the failed build.
        if contender.number == 0 and failure.kind == "mistake":  # the other arms have no base
            raise Explained(failure)
        arm = self._arms[contender.number]
        arm.state = name_outcome(failure)
        arm.reason = failure.sentence
        contender.variant = None
        self._context.variants.forget(contender.situation, contender.copy)
        alternation.contenders.remove(contender)
        alternation.alone = alone
        gc.collect()
        free_memory()
        text = f"{arm.title}: {arm.state}: {arm.reason}"
        self._context.wire.send(protocol.Note(kind="warning", text=text))

    def _build_all(self) -> None:
        """Build and warm up every arm, or none if they do not fit together."""
        alternation = self._alternation
        for contender in list(alternation.contenders):
            if contender.variant is None and not alternation.alone:
                if self._leave_out(contender, 1.0):
                    continue
                self._context.state("building", f"Building {contender.name}")
                self._guard(contender, self._build)
        for contender in alternation.contenders:
            alternation.set_steps(contender)

    def _build(self, contender: Contender) -> None:
        self._alternation.build(contender)
        self._alternation.warm_up(contender)

    def _measure(self) -> None:
        context, alternation, budget_s = self._context, self._alternation, self._command.budget_s
        verdict.load()
        context.state("running", f"Alternating {len(alternation.contenders)} arms")
        self._began = self._alternation.now()
        number = 0
        while len(alternation.contenders) > 1:
            order = list(alternation.contenders)
            self._random.shuffle(order)
            for contender in order:
                self._guard(contender, functools.partial(self._block, number))
            number += 1
            if verdict.is_look(number):
                self._report()
            spent_s = self._alternation.now() - self._began
            text = f"{counted(number, 'round')} of {len(alternation.contenders)} arms"
            context.progress("alternating", min(1.0, spent_s / budget_s), text)
            hopeless = number >= HOPELESS_ROUNDS and not any(e.judgement for e in self._effects)
            if estimation.settled(self._effects) or spent_s >= budget_s or hopeless:
                return

    def _block(self, number: int, contender: Contender) -> None:
        def keep(block: TimedBlock) -> None:
            self._blocks.append((number, contender.number, block))
            row: TableColumns = {
                "round": [number],
                "arm": [contender.number],
                "median_ms": [block.median_ms],
                "clock_mhz": [block.clock_mhz],
                "mean_ms": [block.mean_ms],
                "void": [block.void],
            }
            self._study.rows("blocks", row)

        self._alternation.block(contender, keep)
        self._note_path(contender)  # ranks may change from block to block

    def _note_path(self, contender: Contender) -> None:
        """Record what computes an arm's experts and its ranks, unless it was freed to make room."""
        if (variant := contender.variant) is not None:
            path = path_text(variant.record.usage, variant.situation.config, variant.model)
            self._arms[contender.number].path = path

    # Messages

    def _report(self, final: bool = False) -> None:
        """Send the present arms and their effects."""
        command = self._command
        missing = {n: arm.reason for n, arm in enumerate(self._arms) if arm.state != "measured"}
        titles = [f"{name}={command.toggles[name]}" for name in self._names]
        subsets = [arm.on for arm in self._arms]
        contrasts = design.contrasts(command.mode, titles, subsets, missing, self._orders)
        medians = self._table([block.median_ms for _, _, block in self._blocks])
        clocks = self._table([block.clock_mhz for _, _, block in self._blocks])
        means = self._table([block.mean_ms for _, _, block in self._blocks])
        seconds = self._alternation.now() - self._began if self._began else 0.0
        self._effects = estimation.measure(
            contrasts,
            medians,
            clocks,
            means,
            region=command.region,
            floor=command.floor,
            half_width=command.half_width,
            seconds=seconds,
        )
        peaks = [arm.peak_bytes for arm in self._arms]
        memory = estimation.memory(contrasts, peaks) if self._counts_memory else []
        self._study.rows("effects", effect_rows(self._effects, memory), replace=True)
        self._send_arms(medians)
        if final:
            more_s = estimation.more_s(self._effects)
            self._study.facts(
                final=True,
                seconds=seconds,
                **({} if more_s is None else {"more_s": more_s}),
                rounds=len(medians),
                settled=estimation.settled(self._effects),
                **self._alternation.rebuilding(),
            )

    def _send_arms(self, medians: estimation.Table | None = None) -> None:
        table = self._table([]) if medians is None else medians
        self._study.rows("arms", arm_rows(self._arms, table), replace=True)

    def _table(self, values: Sequence[float | None]) -> estimation.Table:
        """Return a value of each block as (rounds, arms)."""
        return estimation.rounds(
            [number for number, _, _ in self._blocks],
            [arm for _, arm, _ in self._blocks],
            [math.nan if value is None else value for value in values],
            [block.void for _, _, block in self._blocks],
            len(self._arms),
        )
