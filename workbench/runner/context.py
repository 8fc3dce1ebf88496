"""The state that all runs of one runner share: the device, its instruments and what was built."""

from __future__ import annotations

import bisect
import contextlib
import math
import statistics
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from sessions.ceilings import FASTEST
from sessions.energy import DEVICES
from sessions.model import Ceilings, Configuration, Phase, Scalar
from sessions.verdicts.comparison import OTHERS, OWN_PEAK
from workbench import protocol
from workbench.runner.building.graph_pools import resident_bytes
from workbench.runner.building.matrix_rate import matrix_dtype
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import report_left_out, resolve_runnable
from workbench.runner.distributed import world
from workbench.runner.failures import Cancelled
from workbench.runner.instruments import timing
from workbench.runner.instruments.clocks import ClockMeter
from workbench.runner.instruments.contention import BUSY, CPU_BUSY, Alarm
from workbench.runner.instruments.memory import GpuMemory, HostMemory, Memory, make_memory
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.instruments.rank_telemetry import RankTelemetry
from workbench.runner.instruments.samplers import Sample, Sampler, make_sampler
from workbench.runner.instruments.telemetry import Telemetry
from workbench.runner.instruments.timing import GpuClock, HostClock, Lap, make_clock
from workbench.runner.instruments.watchdog import Watchdog
from workbench.runner.interfaces import Situation
from workbench.runner.roofline.ceilings import Roof
from workbench.runner.roofline.counter import Tally
from workbench.runner.roofline.predict import Predictor
from workbench.runner.toggles import all_toggles
from workbench.runner.variants import fake_step
from workbench.runner.variants.steady_segment import SteadySegment
from workbench.runner.variants.variant import Variant
from workbench.runner.wire import Wire

SAMPLES = 1200  # telemetry samples of one minute
RECENT_NS = 200_000_000
RESTARTED = "earlier steps made weights NaN or infinite: training restarts from the initial weights"


@dataclass
class RunnerContext:
    """The instruments around one device, all reporting to one wire."""

    wire: Wire
    device: torch.device
    variants: VariantCache = field(default_factory=VariantCache)
    segments: int = 0  # number of segments that were begun
    segment: int = -1  # the segment of the current steps and phases
    comparisons: int = 0
    paired_blocks: int = 0  # blocks that ran in the background of runs
    steady: dict[bytes, SteadySegment] = field(default_factory=dict)  # the last by configuration
    studies: int = 0
    samples: deque[tuple[int, Sample]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    clock: HostClock | GpuClock = field(init=False)
    clocks: ClockMeter = field(init=False)  # how fast the GPU ran
    memory: GpuMemory[Variant] | HostMemory = field(init=False)
    phases: PhaseTracker = field(init=False)
    watchdog: Watchdog = field(init=False)
    roof: Roof = field(init=False)
    predictor: Predictor = field(init=False)

    def __post_init__(self) -> None:
        self.clock = make_clock(self.device)
        self.clocks = ClockMeter(self.device, self._no_cycles)
        self.memory = make_memory(self.device, resident_bytes, self.variants.others_bytes)
        self.phases = PhaseTracker(self._phase_changed)
        self.watchdog = Watchdog(self.wire)
        self.roof = Roof(self.wire, self.device, self.disturbance, self._ceilings_known)
        self.predictor = make_predictor(self.roof)
        self._alarm = Alarm()
        self.variants.on_restart = lambda: self.note("warning", RESTARTED)
        self._rank_telemetry = RankTelemetry(self.wire, self.device, world.current)
        self._variant: weakref.ref[Variant] | None = None  # the variant that steps
        self._sampler: Sampler | None = None
        self._own_peaks: dict[int, float] = {}  # bytes by segment
        self._roofless: dict[int, tuple[str, int]] = {}  # dtype and devices by segment

    def start(self) -> None:
        """Start the threads that watch."""
        self.watchdog.start()
        self._sampler = make_sampler(self.device)
        Telemetry(self.wire, self._sampler, self._telemetry_seen).start()

    def set_variant(self, variant: Variant | None) -> None:
        """Watch the memory and the devices of the variant that steps from now on, if any."""
        self.memory.track(variant)
        self.watchdog.cause = "" if variant is None else _hang_cause(variant)
        self._variant = None if variant is None else weakref.ref(variant)
        self._rank_telemetry.update()

    def resolve(self, *configurations: Configuration) -> list[Situation]:
        """Return the situations of a request; raise ``ValueError`` if one cannot run.

        Preferred options that are not used are reported.
        """
        situations = [resolve_runnable(choice, self.device) for choice in configurations]
        report_left_out(self.wire, situations)
        return situations

    def begin_segment(self) -> int:
        """Begin a segment and return its number; steps and phases belong to it from here on.

        On a GPU with nothing built on it, ceilings that are not known are measured before; on the
        CPU only on request.
        """
        self.clock.drain(wait=True)  # remaining steps are from before a failure, and of another
        if self.device.type == "cuda" and self.roof.measured is None and not self.variants.count:
            with contextlib.suppress(torch.OutOfMemoryError):  # other processes use the memory
                self.roof.measure()
        self.segment, self.segments = self.segments, self.segments + 1
        return self.segment

    def telemetry_between(self, start_ns: int, stop_ns: int) -> list[Sample]:
        """Return what telemetry read in a stretch of ``perf_counter_ns``, or just before it."""
        samples = list(self.samples)
        first = bisect.bisect_left(samples, start_ns, key=lambda sample: sample[0])
        inside = [sample for taken_ns, sample in samples[first:] if taken_ns <= stop_ns]
        if not inside and first and start_ns - samples[first - 1][0] < RECENT_NS:
            inside = [samples[first - 1][1]]
        return inside

    def others_percent(self, start_ns: int, stop_ns: int) -> float | None:
        """Return the median share of the device that other processes used; None where unknown."""
        shares = [sample["others"] for sample in self.telemetry_between(start_ns, stop_ns)
                 if "others" in sample]  # fmt: skip
        return statistics.median(shares) if shares else None

    def disturbance(self, start_ns: int, stop_ns: int) -> str:
        """Return a clause that names who else used the device then, and how much; else empty."""
        share = self.others_percent(start_ns, stop_ns)
        on_gpu = self.device.type == "cuda"
        if share is None or share < (BUSY if on_gpu else CPU_BUSY):
            return ""
        who = "others" if self._sampler is None else self._sampler.other_processes.who
        return f"{who} used {share:.0f} % of the {'GPU' if on_gpu else 'CPU'}"

    def sm_clock_mhz(self, start_ns: int, stop_ns: int) -> float | None:
        """Return the GPU's mean SM clock in a period, from samples; None if unknown."""
        if self.device.type != "cuda":
            return None
        clocks_mhz = [sample["sm_clock"] for sample in self.telemetry_between(start_ns, stop_ns)
                 if sample.get("sm_clock")]  # fmt: skip
        return statistics.fmean(clocks_mhz) if clocks_mhz else None

    def synchronize(self) -> None:
        """Wait until the device has completed all queued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Pause the hang watchdog while no steps run; an exception inside ends the run."""
        watched, self.watchdog.active = self.watchdog.active, False
        yield
        if watched:
            self.watchdog.active = True
            self.watchdog.begin(self.phases.phase)

    def check_cancelled(self) -> None:
        """Raise ``Cancelled`` if the run was cancelled."""
        if self.wire.cancelled.is_set():
            raise Cancelled

    def state(self, state: str, text: str = "") -> None:
        """Report what the runner does now."""
        self.wire.send(protocol.State(state=state, text=text))

    def note(self, kind: str, text: str) -> None:
        """Put something on the timeline; ``kind`` as in ``protocol.Note``."""
        self.wire.send(protocol.Note(kind=kind, text=text))

    def progress(self, task: str, fraction: float, text: str = "") -> None:
        """Report the completed ``fraction`` (0 to 1) of a task."""
        self.wire.send(protocol.Progress(task=task, fraction=fraction, text=text))

    def send_steps(self, laps: list[Lap], block: int = 0) -> None:
        """Send finished steps, with the present memory; ``block`` is 0 outside of one."""
        memory = self.memory.sample()
        if not math.isnan(memory.reserved):
            self.phases.memory_reserved(memory.reserved)
        if names := timing.pop_replaced():
            self.note(
                "warning",
                f"the model's file replaced {', '.join(names)}: step times are not affected, and "
                "the original was restored",
            )
        if not laps:
            return
        columns: dict[str, list[float | None]] = {
            "t_s": [self.wire.seconds(lap.start_ns) for lap in laps],
            "wall_ms": [lap.wall_ms for lap in laps],
            "phase": [int(lap.phase) for lap in laps],
            "allocated": [memory.allocated_of(lap.start_ns) for lap in laps],
            "peak": [memory.peak_of(lap.start_ns) for lap in laps],
        }
        if block:
            columns["block"] = [block] * len(laps)
        if laps[0].gpu_ms is not None:
            columns["gpu_ms"] = [lap.gpu_ms for lap in laps]
            columns["reserved"] = [memory.reserved] * len(laps)
        self.wire.send(protocol.Steps(segment=self.segment, columns=columns))
        if any(lap.phase == Phase.STEADY and lap.start_ns >= memory.since_ns for lap in laps):
            self._send_own_peak(memory)

    def _send_own_peak(self, memory: Memory) -> None:
        """Report the segment's highest peak without the memory of other configurations."""
        variant = None if self._variant is None else self._variant()
        peaks = [memory.peak - memory.others_bytes]
        if self.device.type == "cuda" and variant is not None and variant.divided is not None:
            peaks += variant.divided.peaks[1:]
        peak = max(peaks)  # the rank that needs most
        if not peak > self._own_peaks.get(self.segment, 0.0):
            return
        self._own_peaks[self.segment] = peak
        facts: dict[str, Scalar] = {OWN_PEAK: peak, OTHERS: memory.others_bytes}
        self.wire.send(protocol.Facts(segment=self.segment, ledger=facts))

    def own_peak(self, segment: int) -> float:
        """Return the segment's highest peak in bytes, as its facts have it; NaN if unknown."""
        return self._own_peaks.get(segment, math.nan)

    def facts_of(self, variant: Variant, segment: int) -> dict[str, Scalar]:
        """Return the variant's ledger, and the ceilings for the segment's steps if known."""
        devices = (
            1 if variant.divided is None or self.device.type == "cpu" else variant.divided.ranks
        )
        facts = {**variant.ledger, **variant.record.facts}
        if devices > 1:
            facts[DEVICES] = devices
        dtype = matrix_dtype(variant.situation)
        if self.roof.measured is None:
            self._roofless[segment] = dtype, devices
            return facts
        return {**facts, **_roof_facts(self.roof.measured, dtype, devices)}

    def _ceilings_known(self, ceilings: Ceilings) -> None:
        for segment, (dtype, devices) in self._roofless.items():
            facts = _roof_facts(ceilings, dtype, devices)
            self.wire.send(protocol.Facts(segment=segment, ledger=facts))
        self._roofless.clear()

    def answer(self, request: protocol.Predict) -> None:
        """Send the roofline's prediction for two configurations."""
        prediction = self.predictor.of(request.base, request.other)
        self.wire.send(
            protocol.Predicted(base=request.base, other=request.other, prediction=prediction)
        )

    def _no_cycles(self, why: str) -> None:
        self.note("warning", f"a block's clock is the mean of sampled clocks: {why}")

    def _phase_changed(self, phase: Phase) -> None:
        self.watchdog.begin(phase)
        self.memory.new_phase()
        if self.segment >= 0:
            self.wire.send(protocol.PhaseChanged(segment=self.segment, phase=int(phase)))

    def _telemetry_seen(self, sample: Sample) -> None:
        who = "" if self._sampler is None else self._sampler.other_processes.who
        share, other = self._rank_telemetry.busiest_others()
        if share > sample.get("others", 0.0):  # load on any device disturbs the step
            sample, who = {**sample, "others": share}, other
        self.samples.append((time.perf_counter_ns(), sample))
        if self.device.type != "cuda":
            return
        if "sm_clock" in sample:
            self.phases.clock_mhz(sample["sm_clock"])
        if warning := self._alarm.warning(sample.get("others"), who, time.perf_counter()):
            self.wire.send(protocol.Note(kind="warning", text=warning))


def make_predictor(roof: Roof) -> Predictor:
    """Return the predictions for a device with such ceilings."""
    return Predictor(roof, all_toggles(), resolve_runnable, counted_step)


def counted_step(situation: Situation) -> Tally:
    """Return the work of a situation's step, neither compiled nor captured."""
    toggles = (toggle for toggle in all_toggles().values() if toggle.is_counted)
    return fake_step.count(situation, toggles)


def _roof_facts(known: Ceilings, dtype: str, devices: int) -> dict[str, Scalar]:
    """Return the ledger's facts on the ceilings of steps in ``dtype`` on so many devices."""
    facts: dict[str, Scalar] = {
        "bytes_per_s": known.bytes_per_s,
        "ceilings_created": known.created,
        "matrix_dtype": dtype,
    }
    if dtype in known.flops_per_s:
        facts["matrix_flops_per_s"] = devices * known.flops_per_s[dtype]
    if not known.disturbed:  # a disturbed device may reach more
        facts[FASTEST] = devices * max(known.flops_per_s.values())
    return facts


def _hang_cause(variant: Variant) -> str:
    """Return why a step of the variant may never end, as a sentence; empty for one device."""
    if variant.divided is None:
        return ""
    if not variant.situation.is_own_model:
        return "Its ranks may wait for each other."
    return (
        "Its ranks may wait for each other, as they do if one of them skips a layer that the "
        "others run: let all ranks run the same layers in every step, or switch sharding off."
    )
