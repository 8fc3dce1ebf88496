"""Read each batch from the text file while the model runs, as a training script does.

By default sixteen batches are on the device, and no step waits for input. *In the step* reads each
batch in the process of the step. *Two workers* reads ahead in two processes. *Two workers, pinned*
also puts the batches in pinned memory, from which the GPU copies them without the host (PyTorch's
``DataLoader``: ``num_workers``, ``prefetch_factor``, ``pin_memory``). The evidence states how long
a step waited for its batch. The batches are the same in all cases. Reading the bytes takes less
time than sending them from a worker, so workers help only if a batch takes long to prepare. On a
CPU with two cores, HYDRA tiny training (8 x 64 tokens of text): 1.05 times the step time (0.90 to
1.23) in the step, 1.04 (1.02 to 1.07) with two workers.
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
            f"{situation.family.name} generates its own batches, so there is no dataset to read",
            "Choose a family whose inputs are text.",
        )
    if not situation.workload.feeds:
        return Blocked(
            f"{situation.workload.title} reads one prompt and no batches",
            "Choose the training step.",
            {"workload": "train"},
        )
    if situation.configuration.data == SYNTHETIC:
        return Blocked(
            "the data is synthetic, so there is no file to read",
            "Set Data to a text file.",
        )
    if option == "pinned" and not situation.on_gpu:
        return NEEDS_GPU
    return conflict(situation, Trait.RANKS, "every rank would read the complete batch")


def _apply(option: str, build: Build) -> None:
    build.loading = _LOADING[option]


def _evidence(option: str, observed: Observed) -> Finding:
    loaded = observed.batches.loaded
    if loaded is None or not loaded.read:
        return no_effect("no batch was read from the file: all batches are on the device")
    workers = loaded.readers - {os.getpid()}
    description = f"by worker processes ({len(workers)})" if workers else "in the step's process"
    description += ", into pinned memory" if loaded.is_pinned else ""
    text = (
        f"batches read from the file: {loaded.read}, {description}; a step waited "
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
    unpredictable="how long it takes to read a batch is unknown before a run",
)
