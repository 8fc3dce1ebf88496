"""One run of a training script: its recording, as a segment of the session."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pynvml

from sessions.columns import TableColumns
from sessions.model import Evidence, Phase
from sessions.numbers import counted
from sessions.studies import breakdown
from workbench import protocol
from workbench.instrument.recording import ENDED, STOPPED
from workbench.instrument.settings import DEFAULT
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.instruments.samplers import NvmlSampler, Sample, Sampler
from workbench.runner.instruments.telemetry import Telemetry
from workbench.runner.script.catalogue import INPUT_WAIT
from workbench.runner.script.host import ScriptHost, group_of, resident_bytes, why_no_steps
from workbench.runner.script.reader import Entry, Reader, number_in
from workbench.runner.wire import Wire

PERIOD_S = 0.05  # between two looks at the recording
RECOMPILES_SHOWN = 20  # notes of recompiles, each with its reason


class ScriptWatch:
    """Watches one process of a script from its start to its end."""

    def __init__(self, wire: Wire, command: protocol.Script, next_segment: int) -> None:
        self._wire = wire
        self._command = command
        self._folder = Path(command.folder)
        self._reader = Reader(self._folder)
        continued = command.segment
        self._segment = next_segment if continued is None else continued
        self.begins_segment = False
        self._process: psutil.Process | None = None
        self._telemetry: Telemetry | None = None
        self._phase_s = 0.0
        self._phases = PhaseTracker(self._enter_phase)
        self._memory: list[float] | None = None
        self._input_ms: list[float] = []  # milliseconds of steady steps
        self._step_ms: list[float] = []
        self._compiled: Counter[str] = Counter()
        self._evidence: list[Evidence] = []
        self._errors: set[str] = set()
        self.steps = 0

    def run(self) -> None:
        """Watch until the script has ended, or until Cancel."""
        wire = self._wire
        wire.send(protocol.State(state="running", text=self._command.label))
        reason = "cancelled"
        while not wire.cancelled.is_set():
            has_ended = (self._folder / ENDED).exists()  # read before the last entries
            for entry in self._reader.read() + (self._reader.read_newest() if has_ended else []):
                self._handle(entry)
            if has_ended:
                reason = "done"
                break
            if self._telemetry is not None and (self._folder / STOPPED).exists():
                self._telemetry.stop()  # samples belong to the recorded steps
            time.sleep(PERIOD_S)
        if self._telemetry is not None:
            self._telemetry.stop()
        self._conclude()
        wire.send(protocol.Finished(reason=reason, steps=self.steps))

    def _handle(self, entry: Entry) -> None:
        for name, take in (
            ("pid", self._handle_process),
            ("facts", self._handle_facts),
            ("gpu", self._handle_gpu),
            ("memory", self._handle_memory),
            ("rows", self._handle_rows),
            ("compiled", self._handle_compiled),
            ("evidence", self._handle_evidence),
            ("values", lambda _: self._handle_values(entry)),
            ("error", self._handle_error),
        ):
            if name in entry:
                take(entry[name])

    def _handle_process(self, pid: int) -> None:
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)

    def _handle_facts(self, facts: dict[str, str]) -> None:
        self._wire.send(protocol.EnvironmentFound(facts=facts))

    def _handle_gpu(self, gpu: dict[str, Any]) -> None:
        facts = {
            "device": gpu["name"],
            "gpu": gpu["name"],
            "capability": gpu["capability"],
            "gpu_memory_bytes": str(gpu["total_bytes"]),
            "cuda": gpu["cuda"],
            "cudnn": gpu["cudnn"],
        }
        try:
            group = None if self._process is None else group_of(self._process)
            self._sample(NvmlSampler(int(gpu["index"]), gpu["uuid"], group))
            facts["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
            self._note("warning", f"the GPU is not sampled: NVML: {error}")
        self._handle_facts(facts)

    def _handle_memory(self, sizes: list[float] | None) -> None:
        if sizes is None:
            if self._process is not None:
                self._memory = resident_bytes(self._process) or self._memory
            if self._telemetry is None and self._process is not None:
                self._sample(ScriptHost(process=self._process))
            return
        self._memory = sizes
        self._phases.memory_reserved(sizes[1])

    def _sample(self, sampler: Sampler) -> None:
        if self._telemetry is not None:
            self._telemetry.stop()  # it sampled the host, before the script used its GPU
        self._telemetry = Telemetry(self._wire, sampler, self._record_clock)
        self._telemetry.start()

    def _record_clock(self, sample: Sample) -> None:
        if (clock := sample.get("sm_clock")) is not None and "power_w" in sample:
            self._phases.clock_mhz(clock)

    def _begin_segment(self, start_s: float) -> None:
        if self.begins_segment or self.steps:
            return
        self._phase_s = start_s
        if self._command.segment is None:
            self.begins_segment = True
            self._wire.send(
                protocol.SegmentStarted(
                    t_s=start_s,
                    index=self._segment,
                    configuration=self._command.configuration,
                    label=self._command.label,
                )
            )
        self._enter_phase(self._phases.phase)

    def _handle_rows(self, rows: list[list[Any]]) -> None:
        names = ("t_s", "gpu_ms", "wall_ms", "allocated", "reserved", "peak", "phase", "block")
        columns: dict[str, list[float | None]] = {name: [] for name in names}
        waits: list[float] = []
        memory = self._memory or [math.nan] * 3
        for row in rows:
            if row[0] == "compile":
                start_s, stop_s = (self._wire.seconds(ns) for ns in row[1:])
                self._begin_segment(start_s)
                self._compile(start_s, stop_s)
                continue
            start_ns, stop_ns, input_ns, gpu_ms = row
            start_s = self._wire.seconds(start_ns)
            self._begin_segment(start_s)
            self._phase_s = self._wire.seconds(stop_ns)
            phase = self._phases.step_phase(stop_ns)
            self.steps += 1
            wall_ms = (stop_ns - start_ns) * 1e-6
            values = (start_s, gpu_ms, wall_ms, *memory, phase, self._command.block)
            for name, value in zip(names, values, strict=True):
                columns[name].append(value)
            waits.append(input_ns * 1e-6)
            if phase is Phase.STEADY:
                self._input_ms.append(waits[-1])
                self._step_ms.append(wall_ms)
        if waits:
            self._wire.send(protocol.Steps(segment=self._segment, columns=columns))
            self._send_metrics(
                {INPUT_WAIT: statistics.fmean(waits)}, float(columns["t_s"][-1] or 0)
            )

    def _compile(self, start_s: float, stop_s: float) -> None:
        self._phase_s = start_s
        with self._phases.during(Phase.COMPILE):
            self._phase_s = stop_s

    def _enter_phase(self, phase: Phase) -> None:
        if self.begins_segment or self._command.segment is not None:
            message = protocol.PhaseChanged(t_s=self._phase_s, segment=self._segment, phase=phase)
            self._wire.send(message)

    def _handle_compiled(self, records: list[list[Any]]) -> None:
        for name, graphs, reason in records:
            self._compiled["graphs"] += graphs
            if reason:
                self._compiled["recompiles"] += 1
                if self._compiled["recompiles"] <= RECOMPILES_SHOWN:
                    reason = re.sub(r"^\W*\d+/\d+: ", "", reason)  # the number of its graph
                    self._note("info", f"recompiled {name}: {reason}")

    def _handle_evidence(self, rows: list[list[str]]) -> None:
        self._evidence = [Evidence(*row) for row in rows]

    def _handle_values(self, entry: Entry) -> None:
        named = {re.sub(r"\W", "_", name): value for name, value in entry["values"].items()}
        self._send_metrics(named, self._wire.seconds(entry["at_ns"]))

    def _send_metrics(self, values: dict[str, float], t_s: float) -> None:
        if self._has_segment:
            metrics: dict[str, list[list[float | None]]] = {
                name: [[value if math.isfinite(value) else None]] for name, value in values.items()
            }
            self._wire.send(protocol.Metrics(t_s=t_s, segment=self._segment, values=metrics))

    def _handle_error(self, text: str) -> None:
        if text not in self._errors:
            self._errors.add(text)
            self._note("warning", f"a part of the script is not recorded: {text}")

    @property
    def _has_segment(self) -> bool:
        return self.begins_segment or self._command.segment is not None

    def _note(self, kind: str, text: str) -> None:
        self._wire.send(protocol.Note(kind=kind, text=text))

    def _conclude(self) -> None:
        """Send the facts of the whole run, and why there are no steps if so."""
        exit_code = self._exit_code()
        if not self.steps and exit_code == 0:  # others failed, which they explain, or still run
            self._note("warning", why_no_steps(self._reader.imported_torch, self._reader.explicit))
        if not self._has_segment:
            return
        ledger: dict[str, Any] = dict(self._compiled)
        if self._step_ms:
            wait_ms, step_ms = (statistics.fmean(s) for s in (self._input_ms, self._step_ms))
            ledger |= {"input_wait_ms": wait_ms, "input_wait_share": wait_ms / step_ms}
            if self._command.segment is None:
                self._send_breakdown(wait_ms, step_ms)
        if exit_code is not None:
            ledger["exit_code"] = exit_code
        self._wire.send(protocol.Facts(segment=self._segment, ledger=ledger))
        reported = {row.toggle for row in self._evidence}
        self._evidence += [
            Evidence(name, option, "unknown", "the script's process did not report it")
            for name, option in self._command.configuration.toggles.items()
            if option != DEFAULT and name not in reported
        ]
        if self._evidence:
            self._wire.send(protocol.EvidenceFound(segment=self._segment, evidence=self._evidence))
        if count := self._reader.left_out:
            self._note("info", f"the session has no steps of {counted(count, 'other process')}")

    def _exit_code(self) -> int | None:
        """Return the script's exit code; None while it runs."""
        return number_in(self._folder / ENDED)

    def _send_breakdown(self, wait_ms: float, step_ms: float) -> None:
        """Send the breakdown of the mean steady step, by the host's clock."""
        self._wire.send(
            protocol.StudyStarted(
                index=self._segment,
                kind=breakdown.KIND,
                title=self._command.label,
                request={"steps": len(self._step_ms)},
            )
        )
        names = ["waiting for input", "everything else"]
        columns: TableColumns = {
            "name": [*names],
            "module": [breakdown.INPUT, breakdown.OUTSIDE],
            "phase": ["input", "step"],
            "kind": [breakdown.INPUT_WAIT, "other"],
            "operator": ["", ""],
            "calls": [1.0, 1.0],
            "us": [1e3 * wait_ms, 1e3 * (step_ms - wait_ms)],
        }
        self._wire.send(protocol.StudyRows(study=self._segment, table="kernels", columns=columns))
        facts: dict[str, Any] = {
            "step_us": 1e3 * step_ms,
            breakdown.WATCHED: True,
            "notes": [
                "Host time of a watched script: the parts of its step are not measured separately."
            ],
        }
        self._wire.send(protocol.StudyFacts(study=self._segment, facts=facts))
