"""Snapshot of everything that a step of a variant uses; two snapshots are compared by entry.

Equal values are not enough: a captured graph, a compiled graph and an optimizer use the address
and the identity of every tensor. A snapshot holds on to the objects, so that no id is used again.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.backends import cuda, cudnn, mkldnn
from torch.utils import _device

import kernels
from models import FAMILIES
from workbench.runner.structures import tensors
from workbench.runner.variants.variant import Variant
from workbench.runner.variants.weights import Quantized, Weights

QUICK = ("hydra", "moe")  # families of all tests; those of the other families are slow


def by_family(*parts: Any, family: str) -> Any:
    """Return the parameters of a test of a family, marked slow unless it is one of ``QUICK``."""
    return pytest.param(*parts, marks=() if family in QUICK else pytest.mark.slow)


SOME_FAMILIES = [by_family(family, family=family) for family in FAMILIES]
WORKLOADS = [
    by_family(name, workload, family=name)
    for name, family in FAMILIES.items()
    for workload in family.workloads
]

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_FLAGS: Mapping[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": lambda: _device.CURRENT_DEVICE,
    "grad enabled": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
    "autocast dtype": lambda: (torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")),
    "autocast cache": torch.is_autocast_cache_enabled,
    "anomaly": torch.is_anomaly_enabled,
    "threads": torch.get_num_threads,
    "deterministic": torch.get_deterministic_debug_mode,
    "fp32 precision": lambda: [
        owner.fp32_precision
        for owner in (torch.backends, cuda.matmul, cudnn, cudnn.conv, mkldnn, mkldnn.matmul)
    ],
    "reduced precision": lambda: (
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
    ),
    "cudnn": lambda: (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
    "sdp": lambda: (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cuda.math_sdp_enabled(),
    ),
    "collector": gc.isenabled,
    "recursion limit": sys.getrecursionlimit,
    "function modes": torch._C._len_torch_function_stack,
    "dispatch modes": torch._C._len_torch_dispatch_stack,
    "saved tensor hooks": lambda: repr(torch._C._autograd._top_saved_tensors_default_hooks(True)),
    "stance": lambda: (
        str(torch._dynamo.eval_frame._stance) if "torch._dynamo" in sys.modules else "default"
    ),
    "kernels": kernels.chosen,
    "watch of kernels": lambda: kernels.core.dispatch._watch,
}


class Snapshot:
    """State of a variant at one moment, by the name of the entry."""

    def __init__(self, variant: Variant, more: Callable[[], Any] = lambda: None) -> None:
        self._objects: list[Any] = []  # alive, so that no id is used again
        self.entries: dict[str, Any] = {}
        for name, value in _parts(variant):
            self._add(name, value)
        for name, read in _FLAGS.items():
            self.entries[f"flag {name}"] = read()
        self.entries["more"] = more()

    def differences(self, other: Snapshot) -> list[str]:
        """Return the names of the entries that differ."""
        names = dict.fromkeys([*self.entries, *other.entries])
        return [
            name
            for name in names
            if self.entries.get(name, "missing") != other.entries.get(name, "missing")
        ]

    def _add(self, name: str, value: Any) -> None:
        self._objects.append(value)
        if not isinstance(value, Tensor):
            self.entries[name] = value
            return
        gradient = value.grad if value.is_leaf else None
        strided = value.layout == torch.strided and value.device.type != "meta"
        self.entries[f"{name}: identity"] = id(value)
        self.entries[f"{name}: kind"] = (
            *(type(value), value.shape, value.dtype, value.device),
            *(value.requires_grad, value.is_leaf),
        )
        self.entries[f"{name}: address"] = (value.data_ptr(), value.stride()) if strided else None
        self.entries[f"{name}: values"] = _bits(value)
        self.entries[f"{name}: hooks"] = [
            list(getattr(value, kind, None) or {}) for kind in _HOOKS if value.is_leaf
        ]
        self.entries[f"{name}: gradient"] = None if gradient is None else _bits(gradient)
        self._objects.append(gradient)


def _bits(tensor: Tensor) -> Any:
    if tensor.device.type == "meta":
        return None
    dense = tensor.detach()
    dense = dense.to_dense() if dense.layout != torch.strided else dense
    return dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _parts(variant: Variant) -> Iterator[tuple[str, Any]]:
    yield from _of_model(variant.model)
    yield from _of_weights(variant)
    batches = variant.batches
    for kind in ("inputs", "targets", "few"):
        for index, tensor in enumerate(tensors(getattr(batches, kind))):
            yield f"batch {kind} {index}", tensor
    yield "advances", batches.advances
    if variant.decoder is not None:
        for name, tensor in variant.decoder.progress.items():
            yield f"decoder {name}", tensor
        for index, tensor in enumerate(variant.decoder.cache.tensors()):
            yield f"cache {index}", tensor
    if variant.rounds is not None:
        yield "round", (variant.rounds.number, variant.rounds.done)
    yield "torch's generator", bytes(torch.get_rng_state().tolist())
    yield "Python's generator", random.getstate()
    yield "numpy's generator", str(numpy.random.get_state())
    yield "remembered", variant.remembered


def _of_model(model: nn.Module) -> Iterator[tuple[str, Any]]:
    yield "modules", [(name, id(module)) for name, module in model.named_modules()]
    for name, module in model.named_modules():
        for kind in ("_parameters", "_buffers"):
            for key, tensor in vars(module)[kind].items():
                yield f"{kind[1:]} {name}.{key}", tensor
        for key, value in vars(module).items():
            where = f"attribute {name}.{key}"
            if key.endswith("_hooks") and isinstance(value, dict):
                yield where, [(number, id(hook)) for number, hook in value.items()]
            elif isinstance(value, Tensor | int | float | str | bool | None):
                yield where, value
            elif isinstance(value, dict | list) and key not in ("_parameters", "_buffers"):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for index, item in items:
                    if isinstance(item, Tensor | int | float | str):
                        yield f"{where}[{index!r}]", item


def _of_weights(variant: Variant) -> Iterator[tuple[str, Any]]:
    weights = variant.weights
    if isinstance(weights, Quantized):
        for index, tensor in enumerate(weights.tensors()):
            yield f"codes {index}", tensor
        return
    assert isinstance(weights, Weights)
    for name, parameter in weights.parameters.items():
        yield f"weight {name}", parameter
    optimizers = {**weights._optimizers, **weights._eight_bit}
    yield "optimizers", {key: id(optimizer) for key, optimizer in optimizers.items()}
    yield "last to step", id(weights._stepping)
    for key, optimizer in optimizers.items():
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        yield f"groups of {key}", str(groups)
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        yield f"hooks of {key}", [list(kind) for kind in hooks]
        for index, group in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(group["params"]):
                for field, value in optimizer.state.get(parameter, {}).items():
                    yield f"state {key} {index} {number} {field}", value
    scaler = weights._scaler
    if scaler is not None:
        yield "loss scale", scaler.state_dict()
        yield "stages of the scaler", {k: str(v) for k, v in scaler._per_optimizer_states.items()}
        for name in ("_scale", "_growth_tracker"):
            yield f"scaler {name}", getattr(scaler, name)
