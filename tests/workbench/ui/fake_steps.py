"""Messages of a run as a GPU would give it: correlated step times that answer to the toggles."""

from __future__ import annotations

import numpy as np

from sessions.model import Configuration, Evidence, Phase
from workbench import protocol

GIB = 2.0**30
STEP_MS = 62.0
SPEED = {  # factor on the step time
    "precision": {"tf32": 0.7, "amp_fp16": 0.52, "amp_bf16": 0.5, "bf16": 0.46},
    "triton": {"on": 0.86},
    "attention": {"sdpa_flash": 0.97, "sdpa_cudnn": 0.93, "flash3": 0.9},
    "checkpointing": {"selective": 1.15, "full": 1.31},
    "adamw": {"foreach": 0.97, "fused": 0.95},
    "compile": {"default": 0.74, "reduce-overhead": 0.72, "max-autotune": 0.7},
    "cuda_graphs": {"on": 0.98},
}
MEMORY = {
    "precision": {"amp_fp16": 0.68, "amp_bf16": 0.68, "bf16": 0.55},
    "checkpointing": {"selective": 0.6, "full": 0.35},
    "compile": {"default": 0.85, "reduce-overhead": 0.9, "max-autotune": 0.88},
}
WARM_UP = 12


class FakeRun:
    """Makes the messages of a run; ``now`` is the runner's clock in seconds."""

    def __init__(self, seed: int = 7, now: float = 0.0) -> None:
        self.now = now
        self.segment = -1
        self.configuration: Configuration | None = None
        self._rng = np.random.default_rng(seed)
        self._noise = 0.0
        self._done = 0  # steps of the segment

    def begin(self, configuration: Configuration, label: str = "") -> protocol.SegmentStarted:
        """Start a segment."""
        self.segment += 1
        self.configuration = configuration
        self._done = 0
        return protocol.SegmentStarted(
            t_s=self.now, index=self.segment, configuration=configuration, label=label
        )

    def phase(self, phase: Phase, seconds: float = 0.0) -> protocol.PhaseChanged:
        """Enter a phase, in which ``seconds`` pass before anything else."""
        message = protocol.PhaseChanged(t_s=self.now, segment=self.segment, phase=int(phase))
        self.now += seconds
        return message

    def steps(self, count: int) -> list[protocol.AnyMessage]:
        """A batch of steps, with the phases that they change."""
        messages: list[protocol.AnyMessage] = []
        columns: dict[str, list[float | None]] = {name: [] for name in ("t_s", "gpu_ms", "wall_ms")}
        for name in ("allocated", "reserved", "peak", "phase"):
            columns[name] = []
        typical, allocated = STEP_MS * self._factor(SPEED), 38 * GIB * self._factor(MEMORY)
        for _ in range(count):
            self._noise = 0.8 * self._noise + float(self._rng.normal(0, 0.006))
            warm = self._done < WARM_UP
            slow = 1 + (0.6 if self._rng.random() < 0.004 else 0) + (1.5 / (1 + self._done)) * warm
            gpu_ms = typical * (1 + self._noise) * slow
            if self._done == WARM_UP:
                messages.append(self.phase(Phase.STEADY))
            columns["t_s"].append(self.now)
            columns["gpu_ms"].append(gpu_ms)
            columns["wall_ms"].append(gpu_ms + 0.4)
            columns["allocated"].append(allocated * float(self._rng.uniform(0.96, 1.0)))
            columns["reserved"].append(allocated * 1.12)
            columns["peak"].append(allocated * 1.06)
            columns["phase"].append(Phase.WARM_UP if warm else Phase.STEADY)
            self.now += (gpu_ms + 0.4) / 1e3
            self._done += 1
        messages.append(protocol.Steps(t_s=self.now, segment=self.segment, columns=columns))
        return messages

    def telemetry(self, busy: bool = True) -> protocol.TelemetrySamples:
        """One sample of the device."""
        draw = self._rng.normal
        return protocol.TelemetrySamples(
            t_s=self.now,
            device="gpu0",
            columns={
                "t_s": [self.now],
                "busy": [min(100.0, 96 + float(draw(0, 2))) if busy else 0.0],
                "sm_active": [71 + float(draw(0, 3)) if busy else 0.0],
                "tensor_active": [38 + float(draw(0, 2)) if busy else 0.0],
                "dram_active": [44 + float(draw(0, 2)) if busy else 0.0],
                "memory_used": [42 * GIB],
                "power_w": [560 + float(draw(0, 12)) if busy else 118.0],
                "sm_clock": [1950 + float(draw(0, 6))],
                "temperature": [61 + float(draw(0, 0.4))],
                "throttle": [0.0],
            },
        )

    def evidence(self) -> protocol.EvidenceFound:
        """Every option took effect, except that reduce-overhead finds nothing to capture."""
        assert self.configuration is not None
        evidence = []
        for toggle, option in self.configuration.toggles.items():
            if option in ("off", "fp32", "follow", "auto", "none", "per_layer", "loop"):
                continue
            status, text = "effective", "seen in the marked step's kernels"
            if option == "reduce-overhead":
                status, text = "no effect", "no graph was captured: the step mutates its inputs"
            elif toggle == "rope_cache":
                status, text = "unknown", "looked for after the warm-up"
            evidence.append(Evidence(toggle, option, status, text))
        return protocol.EvidenceFound(t_s=self.now, segment=self.segment, evidence=evidence)

    def _factor(self, table: dict[str, dict[str, float]]) -> float:
        assert self.configuration is not None
        factor = 1.0
        for toggle, option in self.configuration.toggles.items():
            factor *= table.get(toggle, {}).get(option, 1.0)
        return factor
