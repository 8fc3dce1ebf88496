"""Ceilings of this device: measured once, and read from a file after that."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch
from torch.backends import cudnn

from kernels import hardware
from kernels.measure import eight_bit, timing
from sessions.model import Ceilings
from workbench import ceilings, protocol
from workbench.runner.environment import device_name, driver
from workbench.runner.wire import Wire

RATES = frozenset({"float32", "tf32", "float16", "bfloat16", *eight_bit.UNITS})  # ever measured


class Roof:
    """The ceilings of one device, measured if they are not stored; each result is sent.

    ``disturbance`` returns a clause that names other users of the device in a period of
    ``perf_counter_ns``; empty if there were none. ``known`` is called with each result.
    """

    def __init__(
        self,
        wire: Wire,
        device: torch.device,
        disturbance: Callable[[int, int], str],
        known: Callable[[Ceilings], None] = lambda _: None,
    ) -> None:
        self._wire, self.device, self._disturbance = wire, device, disturbance
        self._known = known
        self.measured: Ceilings | None = None

    def at_start(self) -> None:
        """Read and send the stored ceilings, or why they are not used; measure nothing."""
        self.measured, why = ceilings.load(*self._identity())
        if self.measured is not None or why:
            self._send("kept", why)

    @property
    def ceilings(self) -> Ceilings:
        """The ceilings, measured now if they are not known."""
        return self.measure() if self.measured is None else self.measured

    def measure(self) -> Ceilings:
        """Measure, store and send the ceilings; report if they cannot be stored.

        Ceilings that other processes disturbed are not stored: every later run would trust them.
        """
        name, driven, version = self._identity()
        began_ns = time.perf_counter_ns()
        self._wire.send(protocol.State(state="building", text="Measuring the device's ceilings"))
        device = str(self.device)
        # A prediction may be the first to need them, between two steps of a model that draws.
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            rates, lacking = self._rates(device)
            bytes_per_s = timing.copy_rate(device)
        self.measured = Ceilings(
            device=name,
            driver=driven,
            torch=version,
            created=time.time(),
            bytes_per_s=bytes_per_s,
            flops_per_s=rates,
            lacking=lacking,
            disturbed=self._disturbance(began_ns, time.perf_counter_ns()),
        )
        timing.forget_evictor()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        self._send("measured", _keep(self.measured))
        return self.measured

    def _rates(self, device: str) -> tuple[dict[str, float], dict[str, str]]:
        """Return matrix rates by dtype, and why there is none of some."""
        rates, lacking = dict(self._wide_rates(device)), {}
        eight_bit.measured.cache_clear()
        for name in eight_bit.UNITS:
            rate = eight_bit.measured(name, device)
            if isinstance(rate, str):
                lacking[name] = rate
            else:
                rates[name] = rate
        return rates, lacking

    def _wide_rates(self, device: str) -> Iterator[tuple[str, float]]:
        facts = hardware.of(self.device)
        yield "float32", timing.matrix_rate(device, torch.float32)
        if facts.tf32:
            with fp32_products(tf32=True):
                yield "tf32", timing.matrix_rate(device, torch.float32)
        if facts.fp16:
            yield "float16", timing.matrix_rate(device, torch.float16)
        if facts.bf16 or not facts.is_gpu:
            yield "bfloat16", timing.matrix_rate(device, torch.bfloat16)

    def _identity(self) -> tuple[str, str, str]:
        # On the CPU it is the number of threads that decides on the rates.
        on_cpu = f"threads: {torch.get_num_threads()}" if self.device.type == "cpu" else ""
        return device_name(self.device), on_cpu or driver(self.device), str(torch.__version__)

    def _send(self, source: str, why: str) -> None:
        self._wire.send(protocol.CeilingsFound(ceilings=self.measured, source=source, why=why))
        if self.measured is not None:
            self._known(self.measured)


def _keep(measured: Ceilings) -> str:
    """Store the ceilings; return why they are not stored, or an empty text."""
    if measured.disturbed:
        return f"the ceilings are not stored, because {measured.disturbed} meanwhile"
    try:
        ceilings.store(measured)
    except OSError as error:
        return ceilings.unstored(error)
    return ""


@contextlib.contextmanager
def fp32_products(*, tf32: bool) -> Iterator[None]:
    """Let products and convolutions of FP32 numbers use TF32 meanwhile, or keep all their bits.

    Torch's own default is TF32 for the convolutions of cuDNN, and not for products.
    """
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]
