"""A run that searches for the best configuration, and measures it again with new blocks.

The search is ``sessions.studies.optimization``. This run gives it candidates that are built and
timed here, and sends its state after each step, so that a stop or a kill loses nothing.
"""

from __future__ import annotations

import math

import msgspec

from sessions.columns import TableColumns
from sessions.numbers import counted
from sessions.studies.optimization.rows import (
    candidate_rows,
    final_facts,
    option_rows,
    verdict_rows,
)
from sessions.studies.optimization.search import Search
from sessions.studies.optimization.space import (
    BATCH,
    ENERGY,
    MEMORY,
    Candidate,
    Dimension,
    Goal,
    StartFailed,
)
from sessions.studies.optimization.verdicts import Verdicts
from sessions.studies.optimization.words import (
    BLOCKS,
    CANDIDATES,
    EFFECTS,
    KIND,
    OPTIONS,
)
from sessions.verdicts import verdict
from workbench import protocol
from workbench.runner.building.labels import label
from workbench.runner.config.availability import blocked_options
from workbench.runner.config.values import check_comparison, known
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.optimize_bench import RunnerBench
from workbench.runner.experiments.paired.blocks import TimedBlock
from workbench.runner.experiments.study_sender import Facts, StudySender, verdict_facts
from workbench.runner.failures import Explained, Mistake
from workbench.runner.interfaces import Situation
from workbench.runner.toggles import all_toggles

PERIOD_S = 0.5  # between two reports, while rounds run
COUNTED = "counted by the allocator, without the memory of other configurations"
NOT_COUNTED = "not measured: on the CPU, the memory of a single configuration cannot be counted"


class OptimizeRun:
    """Searches until nothing is left to try, the budget is spent, or a command ends it."""

    def __init__(self, context: RunnerContext, command: protocol.Optimize) -> None:
        self._context = context
        self._command = command
        self._bench: RunnerBench | None = None
        self._search: Search | None = None
        self._verdicts: Verdicts | None = None
        self._blocked: dict[tuple[str, str], str] = {}  # options that cannot be used here, and why
        self._blocks: TableColumns = {}  # columns of blocks that were not sent yet
        self._study = StudySender(context)
        self._reported_s = -math.inf

    @property
    def steps(self) -> int:
        """Steps so far."""
        return 0 if self._bench is None else self._bench.alternation.steps

    def execute(self) -> None:
        """Search to the end.

        Raises ``Mistake``, ``Cancelled``, ``RunEnded``, what is fatal, or ``Explained`` if the
        start configuration cannot be measured.
        """
        search, verdicts = self.prepare()
        try:
            verdict.load()
            search.run()
            verdicts.run()
        except StartFailed as error:
            raise Explained(self._failure_of_start(str(error))) from None
        finally:
            self._context.watchdog.active = False
            self._report("", final=True)

    def _failure_of_start(self, reason: str) -> protocol.Failure:
        """Return the failure that ended the search, as another run would report it."""
        failure = None if self._bench is None else self._bench.failure
        if failure is None or failure.sentence != reason:  # its numbers are at fault
            failure = protocol.Failure(kind="model", sentence=reason)
        sentence = f"The start configuration cannot be measured: {failure.sentence}"
        return msgspec.structs.replace(failure, sentence=sentence)

    # Preparation

    def prepare(self) -> tuple[Search, Verdicts]:
        """Check the command, settle the dimensions, and announce the study."""
        command, context = self._command, self._context
        check_comparison(command)
        if any(batch < 1 for batch in command.batches):
            raise Mistake(f"batches = {command.batches}: a batch has at least one sample")
        for name in ("memory_limit", "max_error"):
            if (limit := getattr(command, name)) is not None and not limit > 0:
                raise Mistake(f"{name} = {limit:g} is not a number above 0")
        if not self._counts_memory and (command.memory_limit or command.objective == MEMORY):
            raise Mistake(f"memory cannot be the objective or a limit here: {NOT_COUNTED}")
        (base,) = context.resolve(command.base)
        dimensions = self._dimensions(base)
        bench = RunnerBench(
            context, base, dimensions, command.objective, command.budget_s, command.seed
        )
        if command.objective == ENERGY and bench.energy.why_not:
            raise Mistake(f"energy cannot be the objective here: {bench.energy.why_not}")
        goal = Goal(
            objective=command.objective,
            memory_limit=_limit(command.memory_limit),
            max_error=_limit(command.max_error),
            budget_s=command.budget_s,
        )
        context.variants.keep_only(base)
        self._bench, bench.on_block = bench, self._keep_block
        self._search = Search(dimensions, bench, goal, self._report)
        self._verdicts = Verdicts(self._search, command.region, command.floor, command.half_width)
        self._announce(base, dimensions)
        return self._search, self._verdicts

    def _dimensions(self, base: Situation) -> list[Dimension]:
        """Return the toggles to search, with the options that this device and family have."""
        command, toggles = self._command, all_toggles()
        for name in [*command.include, *command.exclude]:
            toggle = known("toggle", name, toggles)
            if toggle.makes_other_model and name in command.include:
                raise Mistake(f"toggle {name} changes the model, so it cannot be searched")
        blocked = blocked_options(base)
        dimensions = []
        for name, toggle in toggles.items():
            is_left_out = toggle.makes_other_model or name in command.exclude
            if is_left_out or (command.include and name not in command.include):
                continue
            # The space leaves out options that need another machine or family. It includes options
            # that another toggle would enable.
            refusals = blocked.get(name, {})
            hopeless = {option for option, why in refusals.items() if why.absent or not why.set}
            start = base.option(name)
            self._blocked |= {
                (name, option): refusals[option].reason
                for option in toggle.options
                if option in hopeless
                and option != start
                and (name in command.include or not refusals[option].absent)
            }
            options = tuple(o for o in toggle.options if o == start or o not in hopeless)
            if len(options) > 1:
                dimensions.append(Dimension(name, options, start))
        start_batch = str(base.configuration.settings["batch"])
        batches = tuple(dict.fromkeys([start_batch, *map(str, command.batches)]))
        if len(batches) > 1:
            dimensions.append(Dimension(BATCH, batches, start_batch))
        if not dimensions:
            raise Mistake(
                "nothing to search: each toggle that may be searched has only one usable option"
            )
        return dimensions

    def _announce(self, base: Situation, dimensions: list[Dimension]) -> None:
        command, configuration = self._command, base.configuration
        request: Facts = {
            "family": configuration.family,
            "preset": configuration.preset,
            "workload": configuration.workload,
            "objective": command.objective,
            **{
                name: limit
                for name in ("memory_limit", "max_error")
                if (limit := getattr(command, name)) is not None
            },
            "base": msgspec.json.encode(configuration.toggles).decode(),
            "start": [f"{d.name}={d.start}" for d in dimensions],
            "space": float(math.prod(len(d.options) for d in dimensions)),
            **verdict_facts(command),
        }
        self._study.begin(KIND, f"{configuration.title}: best configuration", request)
        self._study.facts(
            memory=COUNTED if self._counts_memory else NOT_COUNTED,
            base=label(configuration, self._context.device),
        )

    @property
    def _counts_memory(self) -> bool:
        return self._context.device.type == "cuda"

    # Messages

    def _keep_block(self, candidate: Candidate, block: TimedBlock, joules: float) -> None:
        assert self._search is not None and self._verdicts is not None
        is_final = bool(self._verdicts.arms)
        number = len(self._verdicts.rounds) if is_final else self._search.rounds
        row: dict[str, float | str | None] = {
            "phase": "verdicts" if is_final else "search",
            "round": number,
            "candidate": candidate.number,
            "median_ms": block.median_ms,
            "clock_mhz": block.clock_mhz,
            "mean_ms": block.mean_ms,
            "joules": joules,
            "void": block.void,
        }
        for name, value in row.items():
            self._blocks.setdefault(name, []).append(value)

    def _report(self, text: str, final: bool = False) -> None:
        """Send the present candidates, options and verdicts, at most once per ``PERIOD_S``."""
        search, verdicts, bench = self._search, self._verdicts, self._bench
        if search is None or verdicts is None or bench is None:
            return
        now = bench.now()
        if not final and now - self._reported_s < PERIOD_S:
            return
        self._reported_s = now
        if self._blocks:  # all at once: a reader copies the table each time
            self._study.rows(BLOCKS, self._blocks)
            self._blocks = {}
        self._study.rows(CANDIDATES, candidate_rows(search, verdicts), replace=True)
        self._study.rows(OPTIONS, option_rows(search, verdicts, self._blocked), replace=True)
        if verdicts.effects:
            self._study.rows(EFFECTS, verdict_rows(verdicts), replace=True)
        if final:
            rebuilding = bench.alternation.rebuilding()
            self._study.facts(**final_facts(search, verdicts), **rebuilding)
            return
        count_text = counted(sum(bool(c.measurements) for c in search.candidates), "configuration")
        fraction = min(1.0, search.spent_s / search.goal.budget_s)
        self._context.progress("optimizing", fraction, f"{count_text} measured; {text}")


def _limit(value: float | None) -> float:
    return math.inf if value is None else value
