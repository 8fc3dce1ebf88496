"""CUDA graphs: record all kernels of a step once, then launch them together as one graph.

Removes the host's launch cost between kernels. Shapes and addresses are fixed. In training the
whole step is captured, with backward pass and optimizer. Helps if the host is slower than the GPU.
On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16, Triton kernels) takes 21.9 instead of
39.3 ms with a slow host, and 0.97 of the step time with a fast host; Mamba-2 2.8B decodes a token
in 4.4 instead of 39.3 ms.

On several ranks each rank captures its part of a training step, collectives included. On two H200s
FSDP takes 43.0 ms and a pipeline 47.0 ms (HYDRA base, 32 x 1,024 tokens, compiled; one GPU 59.1),
where ranks without graphs wait for the host.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

import kernels
from models import Footprint
from models.execution.cuda_graph import CaptureError, capturing, on_capture_stream
from sessions.model import Phase
from sessions.numbers import counted
from workbench.protocol import Blocked, Failure
from workbench.runner.failures import Mistake
from workbench.runner.toggles import conflict
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Fix,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)
from workbench.runner.toggles.compile import LAUNCHED
from workbench.runner.user_models.addresses import addresses_of

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.instruments.phases import PhaseTracker
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

_WARM_UP_STEPS = 3  # lets lazy allocations (of optimizer state) happen first
_WARM_UP_STEPS_OF_DDP = 11  # DDP reads events on the host in its first ten steps
_RELEASE_S = 1.0


class _CapturedStep:
    """Captures the step at its first call and replays it from then on."""

    def __init__(
        self,
        step: Callable[[], torch.Tensor],
        phases: PhaseTracker,
        warm_up_steps: int = _WARM_UP_STEPS,
        model: Model | None = None,
    ) -> None:
        self._step = step
        self._model = model  # a user's, whose calls may replace the memory of its parameters
        self._phases = phases
        self._warm_up_steps = warm_up_steps
        self.graph: torch.cuda.CUDAGraph | None = None
        self.replays = 0
        self._output: torch.Tensor | None = None
        self._lock = threading.Lock()  # guards the graph
        self._releases = 0

    def __call__(self) -> torch.Tensor:
        if self.graph is None:
            self._capture()
        with self._lock:
            if self.graph is None or self._output is None:
                raise CaptureError("the graph was freed, because the ranks of the step have ended")
            self.graph.replay()
            self.replays += 1
            return self._output

    def uncaptured(self) -> torch.Tensor:
        """Run the step without its graph, with the kernels that the graph has."""
        with kernels.captured_choices():
            return self._step()

    def release(self) -> None:
        """Free the graph, from any thread; the next call captures again."""
        locked = self._lock.acquire(timeout=_RELEASE_S)  # a launch may wait for the GPU
        try:
            self._releases += 1
            if self.graph is not None:
                self.graph.reset()
            self.graph = self._output = None
        finally:
            if locked:
                self._lock.release()

    def _capture(self) -> None:
        releases = self._releases
        with on_capture_stream():
            for _ in range(self._warm_up_steps):
                self.uncaptured()
        parameters = {} if self._model is None else dict(self._model.named_parameters())
        addresses = addresses_of(parameters)
        graph = torch.cuda.CUDAGraph()
        with self._phases.during(Phase.CAPTURE), _no_collection(), capturing(graph):
            output = self._step()
        after = addresses_of(parameters)
        if moved := [name for name, address in addresses.items() if after.get(name) != address]:
            raise Mistake(
                f"cuda_graphs: a step gives new memory to {moved[0]}, as an assignment to .data "
                "does, but a captured step uses the memory of its capture; write into the "
                "parameter with copy_, or switch CUDA graphs off"
            )
        with self._lock:
            if self._releases == releases:  # otherwise the ranks have ended meanwhile
                self.graph, self._output = graph, output


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    # A cycle that is collected during capture may hold an older graph, and freeing that graph
    # invalidates the capture.
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if not situation.on_gpu:
        return NEEDS_GPU
    if why := conflict(situation, Trait.REPLAYED, "{title} {option} already captures CUDA graphs"):
        return why
    if situation.workload.trains and situation.option("adamw") != "fused":
        return Blocked(
            "the captured step includes the optimizer, and only fused AdamW keeps its step count "
            "and loss scale on the GPU",
            "Use fused AdamW.",
            {"adamw": "fused"},
        )
    return None


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    if failure.kind == "capture":
        yield Fix(10, {TOGGLE.name: TOGGLE.off}, LAUNCHED)


def _apply(option: str, build: Build) -> None:
    def capture(step: Callable[[], torch.Tensor]) -> _CapturedStep:
        averages = build.layout.averaged > 1 and not build.sharding
        count = _WARM_UP_STEPS_OF_DDP if averages else _WARM_UP_STEPS
        is_alone = build.situation.is_own_model and build.layout.ranks == 1
        return _CapturedStep(step, build.phases, count, build.model if is_alone else None)

    build.step_wrappers.append(capture)


def _evidence(option: str, observed: Observed) -> Finding:
    graph, replays = (getattr(observed.step, name, None) for name in ("graph", "replays"))
    if graph is None or not replays:
        return no_effect("no graph was captured")
    of_rank = " on each rank" if observed.divided is not None else ""
    return effective(f"one graph captured{of_rank} and replayed {counted(replays, 'time')}")


TOGGLE = Toggle(
    name="cuda_graphs",
    title="CUDA graphs",
    help=__doc__,
    group="Compilation",
    stage=Stage.GRAPHS,
    options={"off": "Off", "on": "On"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    traits={"on": (Trait.CAPTURED,)},
    presets={"latency": ("on",), "throughput": ("on",)},
    fixes=_fixes,
)
