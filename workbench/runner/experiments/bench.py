"""A run that times the kernel library: a segment for every operator, case, direction, contender."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

import kernels
from kernels import Case, hardware
from kernels.measure.bench import Row, bench, default_cases
from kernels.measure.eight_bit import ceilings_for
from kernels.measure.host_cost import RECORDED, HostCost, host_costs
from kernels.measure.model_shapes import shape_cases
from kernels.measure.rounds import Timings
from sessions.model import KERNELS, Configuration, Phase, Scalar
from sessions.verdicts import verdict
from sessions.verdicts.rounds import paired_logs
from workbench import protocol
from workbench.runner.config.values import check_seconds
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.run import RunEnded
from workbench.runner.failures import Cancelled, Mistake

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class BenchRun:
    """Times one operator after another until all are done or a command ends it."""

    def __init__(self, context: RunnerContext, command: protocol.Bench) -> None:
        self._context = context
        self._command = command
        self._segments: dict[int, int] = {}  # by a row's id, while the row exists
        self._sent: set[int] = set()  # ids of rows whose times were sent
        self._budget_s = command.budget_s  # budget of one case
        self.steps = 0

    def execute(self) -> None:
        """Time all that was requested; raises ``Mistake`` or ``Cancelled``."""
        budget_s = self._command.budget_s
        if budget_s is not None:
            check_seconds("budget_s", budget_s)
        names = self._command.operators or sorted(kernels.OPS)
        models = self._command.model_shapes
        for name in names:
            if name not in kernels.OPS:
                raise Mistake(
                    f"unknown operator {name!r}; expected one of {', '.join(sorted(kernels.OPS))}"
                )
        dtype = self._dtype()
        if models is not None:
            shapes = {case.op for case in shape_cases(models)}
            names = [name for name in names if name in shapes]
        chosen = {name: self._cases(name) for name in names}
        if self._command.tune and (
            missing := kernels.OPS["rms_norm"].unavailable("triton", self._context.device.type)
        ):
            raise Mistake(f"tune: there is nothing to tune: {missing}")
        if budget_s is not None:
            self._budget_s = budget_s / max(1, sum(map(len, chosen.values())))
        self._context.state("running", "Timing kernels")
        for index, name in enumerate(names):
            self._context.progress("timing kernels", index / len(names), name)
            self._bench(name, dtype, chosen[name])
        self._context.progress("timing kernels", 1.0, "")

    def _dtype(self) -> torch.dtype:
        requested, device = self._command.dtype, self._context.device
        if requested and requested not in DTYPES:
            raise Mistake(
                f"unknown dtype {requested!r}; expected one of {', '.join(sorted(DTYPES))}"
            )
        return DTYPES[requested] if requested else hardware.of(device).precision

    def _cases(self, name: str) -> tuple[Case, ...]:
        """Return the requested cases of an operator, none of them unknown."""
        op, command = kernels.OPS[name], self._command
        if command.model_shapes is not None:
            return tuple(shape.case for shape in shape_cases(command.model_shapes, [name]))
        if command.every_case:
            return tuple(op.cases)
        if not command.cases:
            return default_cases(op, self._context.device.type)
        if cases := tuple(case for case in op.cases if case.name in command.cases):
            return cases
        allowed = ", ".join(case.name for case in op.cases)
        raise Mistake(f"cases: {name} has none of {command.cases}; expected some of {allowed}")

    def _bench(self, name: str, dtype: torch.dtype, cases: tuple[Case, ...]) -> None:
        op, device, command = kernels.OPS[name], self._context.device, self._command
        implementations = command.implementations or op.implementations
        ours = [name for name in implementations if name in op.implementations]
        host = {} if command.forward_only else host_costs(op, device, dtype, ours)
        sent: list[Row] = []
        forward = [case for case in cases if command.forward_only or case.forward_only]
        with_backward = [case for case in cases if case not in forward]
        rows = [
            bench(
                op,
                device,
                dtype,
                cases=chosen,
                only=command.implementations,
                forward_only=chosen is forward,
                tune=command.tune,
                budget_s=self._budget_s,
                enough=self._enough,
            )
            for chosen in (with_backward, forward)
        ]
        for row in itertools.chain(*rows):
            if not any(row is known for known in sent):
                sent.append(row)
                self._segment(row, _host_facts(host.get(row.impl, {}), row.direction))
            self._facts(row)
            self._steps(row)
            self._handle_commands()
        self._segments.clear()
        self._sent.clear()

    def _segment(self, row: Row, facts: dict[str, Scalar]) -> None:
        context = self._context
        index = context.begin_segment()
        self._segments[id(row)] = index
        configuration = Configuration(
            family=KERNELS,
            preset=row.op,
            workload=row.direction,
            settings={"case": row.case, "dtype": row.dtype},
            toggles={"implementation": row.impl},
        )
        label = f"{row.op} {row.case} {row.direction}: {row.impl}"
        context.wire.send(
            protocol.SegmentStarted(
                index=index, configuration=configuration, label=label, ledger={**facts}
            )
        )

    def _steps(self, row: Row) -> None:
        """Send the calls of a row, once they are timed; a block of them is a round."""
        if not row.times_us or id(row) in self._sent:
            return
        self._sent.add(id(row))
        context, index = self._context, self._segments[id(row)]
        context.wire.send(protocol.PhaseChanged(segment=index, phase=Phase.STEADY))
        took_ms = [us / 1e3 for us in row.times_us]
        clock = "gpu_ms" if context.device.type == "cuda" else "wall_ms"
        columns: dict[str, list[float | None]] = {
            "t_s": [context.wire.seconds(int(began_s * 1e9)) for began_s in row.began_s],
            "phase": [int(Phase.STEADY)] * len(took_ms),
            "block": [*row.rounds],
            clock: [*took_ms],
        }
        self.steps += len(took_ms)
        context.wire.send(protocol.Steps(segment=index, columns=columns))

    def _facts(self, row: Row) -> None:
        limits = ceilings_for(row.work, str(self._context.device), DTYPES[row.dtype])
        ledger: dict[str, Scalar] = {
            "floor_us": row.floor_us,
            "bytes": row.work.bytes,
            "flops": row.work.flops,
            "bytes_per_s": limits.bytes_per_s,
            "flops_per_s": limits.flops_per_s,
            "matrix_dtype": limits.dtype,
        }
        measured = {
            "error": row.error,
            "max_difference": row.difference,
            "mean_difference": row.mean_difference,
            "first_s": row.first_s,
            "kernel_us": row.kernel_us,
            "autotune_s": row.autotune_s,
        }
        ledger |= {k: v for k, v in measured.items() if v is not None and math.isfinite(v)}
        if row.tiles:
            ledger["tiles"] = "\n".join(map(str, row.tiles))
        if row.problem:
            ledger["failure"] = row.problem
        index = self._segments[id(row)]
        self._context.wire.send(protocol.Facts(segment=index, ledger=ledger))

    def _enough(self, timed: Sequence[Timings]) -> bool:
        """Return True if all ratios to the first are as narrow as a verdict requires."""
        self._handle_commands()
        first, *remaining = ((timings.us, timings.rounds) for timings in timed)
        if not remaining or not verdict.is_look(timed[0].rounds[-1]):
            return False
        log_ratios = [paired_logs(first, other) for other in remaining]
        if any(verdict.paths(logs)[1][-1] > verdict.HALF_WIDTH for logs in log_ratios):
            return False  # decided without a bootstrap
        return all(
            len(logs) >= verdict.MIN_PAIRS
            and verdict.interval(logs).half_width <= verdict.HALF_WIDTH
            for logs in log_ratios
        )

    def _handle_commands(self) -> None:
        self._context.check_cancelled()
        while (command := self._context.wire.pending()) is not None:
            match command:
                case protocol.Cancel():
                    raise Cancelled
                case protocol.Pause() | protocol.Resume() | protocol.Apply() | protocol.Baseline():
                    pass  # nothing runs that could be paused or changed
                case _:
                    passed_on = None if isinstance(command, protocol.Stop) else command
                    raise RunEnded("stopped", passed_on)


def _host_facts(costs: dict[str, HostCost], direction: str) -> dict[str, Scalar]:
    facts: dict[str, Scalar] = {}
    keys_by_suffix = {"": direction} | ({"_recorded": RECORDED} if direction == "forward" else {})
    for suffix, key in keys_by_suffix.items():
        if key in costs:
            facts[f"host_us{suffix}"] = costs[key].call_us
            facts[f"host_outside_us{suffix}"] = costs[key].outside_us
    return facts
