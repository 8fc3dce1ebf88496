"""Estimate of the memory of a step, before anything is built."""

from __future__ import annotations

from typing import Any

import models
from kernels import hardware
from workbench.runner.config import user_model
from workbench.runner.toggles import Situation
from workbench.runner.toggles._ranks import layout_of
from workbench.runner.toggles.compile import WITH_GRAPHS
from workbench.runner.toggles.data_parallel import ranks_of
from workbench.runner.toggles.pipeline_parallel import of_stages
from workbench.runner.toggles.tensor_parallel import of_shares

# A configuration near the limit may try, and run out of memory in earnest: that is a measurement.
# One that needs many times what there is would only thrash the host.
HOPELESS = 8

# What the options of the precision toggle mean for an estimate of memory.
_SIZES = {"fp32": "fp32", "tf32": "fp32", "amp_fp16": "amp", "amp_bf16": "amp", "bf16": "half"}


def footprint(situation: Situation) -> models.Footprint | None:
    """Return the estimate of a step's memory; None for a model of unknown costs."""
    step: dict[str, Any] = {
        "fused": _fused(situation),
        "compiled": situation.option("compile") != "off",
        "device_type": situation.device.type,
        "rope_shared": situation.option("rope_cache") == "shared",
        "workspace_bytes": _handles(situation) * hardware.of(situation.device).workspace_bytes,
        **_sizes(situation),
    }
    if staged := of_stages(situation, step):
        return staged
    estimate = situation.family.footprint(situation.config, sharding=_sharding(situation), **step)
    return (of_shares(situation, step) or estimate) if estimate.total else None


def _handles(situation: Situation) -> int:
    """Return how many workspaces cuBLAS has.

    The forward pass's thread and the backward pass's have one each, and the same again on the
    stream that a CUDA graph is captured on.
    """
    captured = situation.option("cuda_graphs") == "on"
    captured |= situation.option("compile") in WITH_GRAPHS
    return (2 if situation.workload.trains else 1) * (2 if captured else 1)


def _fused(situation: Situation) -> bool:
    """Return True if the library's kernels run: all, or the one that decides on memory."""
    decisive = ""
    if situation.family is not user_model.FAMILY:
        decisive = situation.family.costs(situation.config).decisive
    chosen = situation.option(f"triton_{decisive}") if decisive else "follow"
    return (situation.option("triton") if chosen == "follow" else chosen) in ("on", "triton")


def _sharding(situation: Situation) -> models.Sharding | None:
    """Return what ranks shard, if they do."""
    stage = situation.option("sharding")
    if stage == "off":
        return None
    return models.Sharding(ranks=layout_of(situation).shard, shares_weights=stage != "gradients")


def _sizes(situation: Situation) -> dict[str, Any]:
    """Return what a step's memory is estimated from."""
    settings, scheme = situation.configuration.settings, situation.option("quantization")
    return {
        "workload": situation.workload.name,
        "batch": -(-int(settings["batch"]) // ranks_of(situation)),
        "sequence": situation.workload.sequence(settings),
        "precision": _SIZES[situation.option("precision")],
        "checkpointing": situation.option("checkpointing"),
        "chunk": int(settings.get("chunk", 0)),
        "attention": situation.option("attention"),
        "quantization": "" if scheme == "none" else scheme,
    }


def check_memory(situation: Situation) -> None:
    """Raise ``models.ConfigurationError`` for a step that needs many times the device's memory."""
    situation.family.check_memory(
        situation.config,
        memory_bytes=HOPELESS * hardware.of(situation.device).total_bytes,
        **_sizes(situation),
    )
