"""Samples the device in separate threads: NVML for a GPU, psutil without one.

Fast readings (1 to 10 us a call on an H200) come 20 times a second. GPM metrics, if the GPU has
them, are averages over the time since the previous sample. Slow readings (energy 4 ms, PCIe 21 ms a
call) have a separate thread, once in two seconds, so that they delay nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sessions.model import ABSENT, TELEMETRY_COLUMNS
from workbench import protocol
from workbench.runner.instruments.samplers import PERIOD_S, SLOW_PERIOD_S, Sample, Sampler
from workbench.runner.wire import Wire

BATCH = 2


class Telemetry:
    """Runs a sampler's two lanes and sends their samples; ``on_sample`` gets every fast sample.

    Sampling periods are sent only for the ``main`` device; other devices have the same.
    """

    def __init__(
        self, wire: Wire, sampler: Sampler, on_sample: Callable[[Sample], None], main: bool = True
    ) -> None:
        self._wire = wire
        self._main = main
        self._sampler = sampler
        self._on_sample = on_sample
        self._slow_sample: Sample = {}
        self._sampling: dict[str, str] = {}  # the reported sampling of each measure
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run_lane, args=(lane, readings), name=f"telemetry-{name}", daemon=True
            )
            for name, lane, readings in (
                ("fast", self._fast_lane, "clocks, utilization and memory of the device"),
                ("slow", self._slow_lane, "energy and PCIe throughput"),
            )
        ]

    def start(self) -> None:
        """Begin to sample."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()

    def _run_lane(self, lane: Callable[[], None], readings: str) -> None:
        """Run a lane; report if it fails, because all its readings are missing from then on."""
        try:
            lane()
        except Exception as error:  # noqa: BLE001 - whatever it was, the thread is over
            if not self._stopped.is_set():
                of = "" if self._main else f"{self._sampler.device.upper()}: "
                text = f"{of}{readings} are no longer recorded: {type(error).__name__}: {error}"
                self._wire.send(protocol.Note(kind="warning", text=text))

    def _fast_lane(self) -> None:
        rows: list[tuple[float, Sample]] = []
        self._sampler.fast()  # the first interval of this thread begins
        while not self._stopped.wait(PERIOD_S):
            sample = self._sampler.fast()
            self._on_sample(sample)
            late, self._slow_sample = self._slow_sample, {}
            rows.append((self._wire.seconds(), sample | late))
            if len(rows) >= BATCH:
                self._send_sampling(self._sampler.how())
                self._send(rows)
                rows = []

    def _send_sampling(self, sampling: dict[str, str]) -> None:
        """Send the sampling periods, and each measure that was lost or came back."""
        if sampling == self._sampling:
            return
        device = self._sampler.device
        if self._main:
            self._wire.send(protocol.Sampling(device=device, how=sampling))
        of = "" if self._main else f"{device.upper()} "
        for name, text in sampling.items():
            lost = text.startswith(ABSENT)
            if name in self._sampling and lost != self._sampling[name].startswith(ABSENT):
                change = (
                    f"no longer measured ({text.removeprefix(ABSENT)})"
                    if lost
                    else "measured again"
                )
                kind = "warning" if lost else "info"
                self._wire.send(protocol.Note(kind=kind, text=f"telemetry: {of}{name} is {change}"))
        self._sampling = sampling

    def _slow_lane(self) -> None:
        while not self._stopped.wait(SLOW_PERIOD_S):
            self._slow_sample = self._sampler.slow()

    def _send(self, rows: list[tuple[float, Sample]]) -> None:
        columns: dict[str, list[float | None]] = {"t_s": [t_s for t_s, _ in rows]}
        for name in TELEMETRY_COLUMNS:
            if any(name in sample for _, sample in rows):
                columns[name] = [sample.get(name) for _, sample in rows]
        message = protocol.TelemetrySamples(device=self._sampler.device, columns=columns)
        self._wire.send(message)
