"""Read each batch from the text file while the model steps, as a training script does.

By default sixteen batches lie on the device, and no step waits for input. *In the step* reads each
batch in the step's own process. *Two workers* reads ahead in two processes. *Pinned* also puts the
batches where the GPU can copy them without the host (PyTorch's ``DataLoader``: ``num_workers``,
``prefetch_factor``, ``pin_memory``). The evidence states how long a step waited for its batch. The
batches are the same in all cases. Bytes are read faster than a worker passes them on; workers pay
where a batch takes long to prepare. On a CPU with two cores, HYDRA tiny training (8 x 64 tokens of
text): 1.05 of the step's time (0.90 to 1.23) in the step, 1.04 (1.02 to 1.07) with two workers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from workbench.protocol import Blocked
from workbench.runner.batches import SYNTHETIC
from workbench.runner.loading import WORKERS, Loading
from workbench.runner.toggles import conflict
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

DEVICE = "device"
_LOADING = {
    "step": Loading(workers=0, pinned=False),
    "workers": Loading(workers=WORKERS, pinned=False),
    "pinned": Loading(workers=WORKERS, pinned=True),
}


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == DEVICE:
        return None
    if situation.family.draw is not None:
        return Blocked(
            f"{situation.family.name} draws its own batches: there is no dataset to read",
            "Choose a family whose inputs are text.",
        )
    if not situation.workload.feeds:
        return Blocked(
            f"{situation.workload.title} reads one prompt, and no batch in each step",
            "Choose the training step.",
            {"workload": "train"},
        )
    if situation.configuration.data == SYNTHETIC:
        return Blocked(
            "there is no dataset: the batches are drawn by a seed",
            "Set Data to a text file.",
        )
    if option == "pinned" and not situation.on_gpu:
        return NEEDS_GPU
    return conflict(situation, Trait.RANKS, "each of several ranks would read the whole batch")


def _apply(option: str, build: Build) -> None:
    build.loading = _LOADING[option]


def _evidence(option: str, observed: Observed) -> Finding:
    loaded = observed.batches.loaded
    if loaded is None or not loaded.read:
        return no_effect("no batch was read from the file: all of them lie on the device")
    workers = loaded.readers - {os.getpid()}
    where = f"by worker processes ({len(workers)})" if workers else "in the step's process"
    where += ", into pinned memory" if loaded.is_pinned else ""
    text = (
        f"batches read from the file: {loaded.read}, {where}; a step waited "
        f"{loaded.wait_ms:.2g} ms for its batch"
    )
    requested = _LOADING[option]
    is_met = bool(workers) == bool(requested.workers) and loaded.is_pinned == requested.pinned
    return effective(text) if is_met else no_effect(text)


TOGGLE = Toggle(
    name="data_loading",
    title="Data loading",
    help=__doc__,
    group="Data",
    stage=Stage.MEMORY,
    options={
        DEVICE: "On device",
        "step": "In the step",
        "workers": "Two workers",
        "pinned": "Two workers, pinned",
    },
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    unpredictable="how long a batch takes to read is unknown beforehand",
)
