"""A run of the validation checklist for one configuration, check by check.

The variant is built again, so that the compilations of its first step are seen. A check that raises
an exception has failed, with the exception's sentence. Results are sent after each check.
"""

from __future__ import annotations

import msgspec

from sessions.columns import TableColumns
from sessions.model import Configuration, Judgement
from sessions.numbers import counted
from sessions.studies.checklist import CHECKS, FAIL, KIND, NOT_APPLICABLE, NOT_CHECKED, PASS
from sessions.verdicts.expectation import at_most
from sessions.verdicts.verdict_words import judgement_words, more_text
from workbench import protocol
from workbench.runner.building.labels import label
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.resolve import resolve
from workbench.runner.config.values import check_comparison
from workbench.runner.context import RunnerContext
from workbench.runner.experiments import checks
from workbench.runner.experiments.checks import Result, fails, not_applicable, passed, undecided
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.blocks import Contender
from workbench.runner.experiments.paired.interleaving import Alternation
from workbench.runner.experiments.run import RunEnded
from workbench.runner.experiments.study_sender import Facts, StudySender
from workbench.runner.failures import Cancelled, Mistake, explain, is_fatal
from workbench.runner.instruments.memory import free_memory
from workbench.runner.interfaces import Situation
from workbench.runner.profiling.probes.graphs import Break
from workbench.runner.toggles import Stage, all_toggles
from workbench.runner.toggles._ranks import batch_ranks_of
from workbench.runner.toggles.micro_batches import least_batch
from workbench.runner.toggles.pipeline_parallel import pipeline_ranks_of
from workbench.runner.variants.variant import Variant

COPY = 9  # a copy that no other run has built or warmed up
MOST_STEPS = 10_000
_BUSY = "A configuration is being checked; stop before changing it."


class ValidateRun:
    """Runs the checks; if the configuration cannot be built, the run fails."""

    def __init__(self, context: RunnerContext, command: protocol.Validate) -> None:
        self._context = context
        self._command = command
        self._situation: Situation | None = None
        self._variants = Alternation(context, command.budget_s, 1, _BUSY)
        self._breaks: list[Break] = []
        self._contender: Contender | None = None
        self._study = StudySender(context)
        self.steps = 0

    def execute(self) -> None:
        """Check to the end; raises ``Mistake``, ``Cancelled``, ``RunEnded`` or what failed."""
        situation = self._prepare()
        context = self._context
        try:
            self._contender = self._build(situation, "Checked")
            self._breaks = list(self._variant.compiles.read().breaks)  # before further checks
            self._announce(situation)
            for number, name in enumerate(CHECKS):
                context.state("running", f"Checking: {CHECKS[name]}")
                context.progress("checking", number / len(CHECKS), CHECKS[name])
                self._report(name, self._run_check(name))
                self._variants.handle_commands()
        finally:
            context.watchdog.active = False
            context.variants.forget(situation, COPY)

    def _prepare(self) -> Situation:
        command, context = self._command, self._context
        check_comparison(command)
        if not 4 <= command.steps <= MOST_STEPS:
            raise Mistake(f"steps = {command.steps} is outside of 4 to {MOST_STEPS}")
        if command.expect_speedup is not None and not 0 < command.expect_speedup < 1e6:
            speedup = f"expect_speedup = {command.expect_speedup:g}"
            raise Mistake(f"{speedup}: expected more than 0 and less than 1e6")
        if wrong := [batch for batch in command.batches if batch < 1]:
            raise Mistake(f"batches: {wrong[0]} is no batch size; the smallest is 1")
        (situation,) = context.resolve(command.configuration)
        self._situation = situation
        context.variants.keep_only(situation)
        return situation

    def _build(self, situation: Situation, name: str) -> Contender:
        contender = Contender(0, COPY, situation, name)
        self._variants.begin(contender)
        # A check may take long without a step, which would count as a hang.
        self._context.watchdog.active = False
        self.steps += 1
        return contender

    def _announce(self, situation: Situation) -> None:
        command, configuration = self._command, situation.configuration
        request: Facts = {
            "configuration": msgspec.json.encode(configuration).decode(),
            "steps": command.steps,
            "batches": [*self._batches(situation)],
            "expect_speedup": command.expect_speedup or 0.0,
            "budget_s": command.budget_s,
        }
        title = f"{configuration.title}: {label(configuration, self._context.device)}"
        self._study.begin(KIND, title, request)

    def _run_check(self, name: str) -> Result:
        try:
            match name:
                case "numerics":
                    return checks.right_numbers(self._variant, self._context.check_cancelled)
                case "syncs":
                    return checks.no_syncs(self._variant)
                case "graph":
                    return checks.fixed_graph(
                        self._variant, self._breaks, self._events, self._watch_steps
                    )
                case "memory":
                    return checks.steady_memory(self._variant, self._command.steps)
                case "speedup":
                    return self._speedup()
                case _:
                    return self._other_batches()
        except (RunEnded, Cancelled):
            raise
        except Exception as error:
            if is_fatal(error):
                raise
            failure = explain(error)
        free_memory()  # outside of the except clause, whose traceback keeps tensors
        return fails(failure.sentence)

    @property
    def _variant(self) -> Variant:
        assert self._contender is not None and self._contender.variant is not None
        return self._contender.variant

    def _leave_variant(self) -> Situation:
        """Free the variant for others; return the checked situation."""
        assert self._situation is not None
        self._contender = None
        self._context.variants.forget(self._situation, COPY)
        free_memory()
        return self._situation

    def _report(self, name: str, result: Result) -> None:
        for line in result.lines:
            self._study.rows("lines", {"check": [name], "line": [line]})
        row: TableColumns = {
            "check": [name],
            "status": [result.status],
            "evidence": [result.evidence],
        }
        self._study.rows("checks", row)

    # Checks that take more than the variant

    def _events(self) -> int:
        return self._context.phases.events

    def _watch_steps(self) -> int:
        """Run timed steps in the variant's segment, so that it shows a compilation among them."""
        assert self._contender is not None
        self._contender.steps = self._command.steps
        while (block := blocks.run_block(self._context, self._contender, 0)) is None:
            self._variants.handle_commands()
        self.steps += block.steps
        return block.steps

    def _speedup(self) -> Result:
        command, situation = self._command, self._leave_variant()
        base = _eager(situation)
        if base == situation.configuration:
            return not_applicable("no toggle is on that could make it faster")
        margin = max(command.region, command.floor)
        least_speedup = command.expect_speedup
        most = 1 / least_speedup if least_speedup is not None else 1 + margin  # times base

        run = CompareRun(
            self._context,
            protocol.Compare(
                base=base,
                other=situation.configuration,
                budget_s=command.budget_s,
                region=command.region,
                floor=command.floor,
                floor_note=command.floor_note,
                seed=situation.configuration.seed,
                energy=False,
            ),
            decides=lambda judgement: at_most(judgement, most, margin).holds is not None,
        )
        try:
            run.execute()
        finally:
            self.steps += run.steps
        assert run.judgement is not None
        answer = at_most(run.judgement, most, margin, run.interval, run.seconds)
        expected = (
            f"at least {least_speedup:g}x faster" if least_speedup is not None else "not slower"
        )
        text = f"{_speed_text(run.judgement, margin)}; expected {expected}"
        if answer.holds is not None:
            return passed(text) if answer.holds else fails(text)
        reasons = answer.reasons
        if answer.more_s is not None:
            self._study.facts(more_s=answer.more_s, seconds=run.seconds)
            reasons = [*reasons, more_text(answer.more_s, run.seconds)]
        return undecided("; ".join([text, *reasons]))

    def _batches(self, situation: Situation) -> list[int]:
        own_batch = int(situation.configuration.settings["batch"])
        parts = batch_ranks_of(situation) * least_batch(situation)
        if pipeline_ranks_of(situation) > 1:
            parts = max(2, parts)
        # Each rank and micro-batch has at least one sequence.
        candidates = (parts, own_batch + parts)
        return self._command.batches or [batch for batch in candidates if batch != own_batch]

    def _other_batches(self) -> Result:
        situation = self._leave_variant()
        texts: list[str] = []
        states: set[str] = set()
        for batch in self._batches(situation):
            settings = {**situation.configuration.settings, "batch": batch}
            other = resolve(
                msgspec.structs.replace(situation.configuration, settings=settings),
                self._context.device,
            )
            try:
                result = self._one_batch(other)
            finally:
                self._context.variants.forget(other, COPY)
                free_memory()
            states.add(result.status)
            texts.append(f"batch {batch}: {result.evidence}")
            self._variants.handle_commands()
        worst = next(
            status for status in (FAIL, NOT_CHECKED, PASS, NOT_APPLICABLE) if status in states
        )
        return Result(worst, "; ".join(texts))

    def _one_batch(self, situation: Situation) -> Result:
        try:
            require_unblocked(situation)
            batch = situation.configuration.settings["batch"]
            contender = self._build(situation, f"Batch {batch}")
            assert contender.variant is not None
            return checks.right_numbers(contender.variant)
        except (RunEnded, Cancelled):
            raise
        except Exception as error:
            if is_fatal(error):
                raise
            return fails(explain(error).sentence)


def _speed_text(judgement: Judgement, region: float) -> str:
    """Return how much faster or slower the variant is than with everything off."""
    pairs = counted(judgement.pairs, "pair")
    return f"{judgement_words(judgement, region)} compared with everything off, {pairs}"


def _eager(situation: Situation) -> Configuration:
    """Return the same model with every toggle off but those that make another model of it."""
    toggles = {
        name: option if all_toggles()[name].stage == Stage.MODEL else all_toggles()[name].off
        for name, option in situation.configuration.toggles.items()
    }
    return msgspec.structs.replace(situation.configuration, toggles=toggles)
