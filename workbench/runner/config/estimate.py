"""Estimate of the memory of a step, before anything is built."""

from __future__ import annotations

import dataclasses
from typing import Any

import models
from kernels import hardware
from models.costs.precision import PRECISIONS
from models.parallel.expert_parallel import experts_of
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.toggles import all_toggles
from workbench.runner.toggles._kernel_toggle import chosen_implementation
from workbench.runner.toggles._ranks import COMPRESSION, SHARDING, layout_of

# A configuration near the limit may run out of memory: that is a measurement, too. One that needs
# many times the memory would only make the host swap.
HOPELESS = 8

# Arguments of a footprint that ``Family.check_memory`` takes too.
_CHECKED = ("precision", "checkpointing", "attention", "quantization", "batch")


def footprint(situation: Situation) -> models.Footprint | None:
    """Return the estimate of a step's memory; None for a model of unknown costs."""
    step: dict[str, Any] = {
        "fused": _fused(situation),
        "device_type": situation.device.type,
        "workspace_bytes": _handles(situation) * hardware.of(situation.device).workspace_bytes,
        **_sizes(situation),
        **_arguments(situation),
    }
    toggles = all_toggles().values()
    gathered = (t.gathered_bytes(situation, step) for t in toggles if t.gathered_bytes)
    step["gathered"] = next(filter(None, gathered), ())
    estimate = situation.family.footprint(situation.config, **step)
    if not estimate.total:
        return None
    divided = (t.divided_memory(situation, step) for t in toggles if t.divided_memory is not None)
    estimate = next(filter(None, divided), estimate)
    together = max(estimate.together, estimate.activations + _bucket_bytes(situation, estimate))
    return dataclasses.replace(estimate, together=together)


def _bucket_bytes(situation: Situation, estimate: models.Footprint) -> int:
    """Return the bytes of gradients in buckets of ``DistributedDataParallel``.

    Buckets stay between steps; PowerSGD also keeps the error of each. Gradients of experts that
    only this rank has are in none.
    """
    layout = layout_of(situation)
    if layout.averaged == 1 or layout.pipeline > 1 or situation.option(SHARDING) != "off":
        return 0
    experts = 0
    if layout.expert > 1:
        size = PRECISIONS[_arguments(situation)["precision"]].weight
        experts = experts_of(situation.family, situation.config).numel // layout.expert * size
    errors = situation.option(COMPRESSION) == "powersgd"
    return (estimate.gradients - experts) * (2 if errors else 1)


def _handles(situation: Situation) -> int:
    """Return how many workspaces cuBLAS has.

    The forward pass's thread and the backward pass's have one each, and the same again in the
    memory pool of a CUDA graph.
    """
    captured = situation.has(Trait.CAPTURED, Trait.REPLAYED)
    return (2 if situation.workload.trains else 1) * (2 if captured else 1)


def _fused(situation: Situation) -> bool:
    """Return True if fused kernels run: all of them, or the one that decides on memory."""
    decisive = ""
    if not situation.is_own_model:
        decisive = situation.family.costs(situation.config).decisive
    return chosen_implementation(decisive, situation) == "triton"


def _sizes(situation: Situation) -> dict[str, Any]:
    """Return the sizes of a step."""
    settings = situation.configuration.settings
    return {
        "workload": situation.workload.name,
        "batch": int(settings["batch"]),
        "sequence": situation.workload.sequence(settings),
        "chunk": int(settings.get("chunk", 0)),
    }


def _arguments(situation: Situation) -> dict[str, Any]:
    """Return the arguments of a footprint that the toggles decide on."""
    return {
        name: value
        for toggle in all_toggles().values()
        if toggle.memory is not None
        for name, value in toggle.memory(situation.option(toggle.name), situation).items()
    }


def check_memory(situation: Situation) -> None:
    """Raise ``models.ConfigurationError`` for a step that needs many times the device's memory."""
    arguments = _arguments(situation)
    situation.family.check_memory(
        situation.config,
        memory_bytes=HOPELESS * hardware.of(situation.device).total_bytes,
        **_sizes(situation) | {name: arguments[name] for name in _CHECKED if name in arguments},
    )
