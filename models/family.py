"""Definition of a model family: its configuration, its presets, and how its models are made.

Structure and weights are separate. ``materialise`` makes a model with its own weights; ``share``
makes another model of the same configuration around the *same* parameters, so that two variants
(checkpointed and not, compiled and not) train one set of weights and one optimizer.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from models.configs.setting import ConfigField, check_choice, check_fields, fields_of, read_value
from models.costs.footprint import Footprint, footprint
from models.costs.model_costs import Costs, flops
from models.errors import ConfigurationError
from models.initialisation import Take, initialise, keep_marks
from models.layers.quantized_linear import saving
from models.model import Metric, Model
from models.parallel.expert_parallel import divide_experts
from models.parallel.pipeline_stages import Stage
from models.parallel.tensor_parallel_plan import Region, divide

Batch = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]  # inputs, targets
WORKLOADS = ("forward", "train", "prefill", "decode", "generate")


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One model family; every family's file in this folder ends in one."""

    name: str
    title: str
    help: str
    config: type[Any]  # a frozen dataclass made of ``setting`` fields
    presets: Mapping[str, Any]  # from small to large
    suggestions: Mapping[str, Mapping[str, tuple[int, int]]]  # preset: device: batch, sequence
    construct: Callable[[Any], Model]
    check: Callable[[Any], None]  # raises ConfigurationError for errors that no single field shows
    costs: Callable[[Any], Costs]
    workloads: tuple[str, ...] = WORKLOADS
    length_field: str = "max_sequence"  # the field of the configuration that bounds a sequence
    inference_only: tuple[str, ...] = ()  # fields that must be off in a training step
    first_choice: str = "base"  # the largest preset that is chosen by default
    metrics: tuple[Metric, ...] = ()  # quantities that its models report
    # (config, workload) to the operators of ``kernels`` that a step calls, including those behind a
    # switch of the model (fused add + norm, fused loss). None: not known beforehand.
    operators: Callable[[Any, str], frozenset[str]] | None = None
    # For a family whose inputs are not tokens: (config, batch, sequence, generator) to a random
    # batch of inputs and targets on the CPU.
    draw: Callable[[Any, int, int, torch.Generator], Batch] | None = None

    def fields(self) -> list[ConfigField]:
        """Return the configuration's fields, for forms and for the command line."""
        return list(fields_of(self.config).values())

    def of_weights(self, config: Any) -> Any:
        """Return the configuration with defaults for the fields that do not affect its weights."""
        free = {field.name: field.default for field in self.fields() if not field.weights}
        return dataclasses.replace(config, **free)

    def configure(self, preset: str, overrides: Mapping[str, Any] | None = None) -> Any:
        """Return the preset with fields replaced, validated; text is read as the field's kind.

        Raises ``ConfigurationError``.
        """
        if preset not in self.presets:
            raise ConfigurationError(
                f"{self.name}: unknown preset {preset!r}; expected one of "
                + ", ".join(self.presets)
            )
        known = fields_of(self.config)
        values = {}
        for name, value in (overrides or {}).items():
            if name not in known:
                raise ConfigurationError(
                    f"{self.name}: unknown field {name!r}; expected one of {', '.join(known)}"
                )
            values[name] = read_value(self.name, known[name], value)
        config = dataclasses.replace(self.presets[preset], **values)
        self.validate(config)
        return config

    def validate(self, config: Any) -> None:
        """Raise ``ConfigurationError`` with one sentence unless the configuration can be built."""
        check_fields(self.name, self.config, config)
        self.check(config)

    def check_choice(self, name: str, value: Any) -> None:
        """Raise ``ConfigurationError`` for a value that a switch or choice field does not allow.

        Other fields and unknown names are accepted.
        """
        field = fields_of(self.config).get(name)
        if field is not None and (field.choices or field.kind is bool):
            check_choice(self.name, field, read_value(self.name, field, value))

    def check_memory(
        self,
        config: Any,
        *,
        workload: str,
        batch: int,
        sequence: int,
        memory_bytes: int,
        precision: str = "fp32",
        checkpointing: str = "none",
        chunk: int = 0,
        attention: str = "",
        quantization: str = "",
    ) -> None:
        """Raise ``ConfigurationError`` for an impossible step, before anything is allocated.

        A step is impossible if the workload does not allow it or it cannot fit ``memory_bytes``.
        Weights, optimizer and activations are estimated. Pass more memory than the device has, so
        that a step near the limit may try and really run out of memory.
        """
        for name in self.inference_only if workload == "train" else ():
            if getattr(config, name):
                raise ConfigurationError(
                    f"{self.name}: {name} overwrites values that a backward pass needs; switch it "
                    "off to train, or choose an inference workload"
                )
        if batch < 1 or sequence < 1:
            raise ConfigurationError(
                f"{self.name}: batch {batch} and sequence {sequence} must be at least 1"
            )
        if sequence > self.longest(config):
            raise ConfigurationError(
                f"{self.name}: a sequence of {sequence} is longer than {self.length_field} = "
                f"{self.longest(config)}; shorten it or raise {self.length_field}"
            )
        needed = self.footprint(
            config,
            workload=workload,
            batch=batch,
            sequence=sequence,
            precision=precision,
            checkpointing=checkpointing,
            chunk=chunk,
            attention=attention,
            quantization=quantization,
        )
        if needed.total > memory_bytes:
            raise ConfigurationError(
                f"{self.name}: {self.parameter_count(config):,} parameters with batch {batch} and "
                f"sequence {sequence} need about {_gigabytes(needed.total)} ({workload}: weights "
                f"{_gigabytes(needed.weights)}, activations {_gigabytes(needed.activations)}), "
                f"but only {_gigabytes(memory_bytes)} can be used; choose a smaller model or batch"
            )

    def longest(self, config: Any) -> int:
        """Return the tokens of the longest sequence; ``sys.maxsize`` without such a field."""
        longest: int = getattr(config, self.length_field, sys.maxsize)
        return longest

    def parameter_count(self, config: Any) -> int:
        """Count trainable numbers by formula: nothing is built."""
        return self.costs(config).parameters

    def flops(
        self, config: Any, batch: int, sequence: int, training: bool = False, **options: Any
    ) -> int:
        """Count FLOPs of one step; ``options`` as in ``models.costs.model_costs.flops``."""
        costs = self.costs(config)
        return flops(costs, batch=batch, sequence=sequence, training=training, **options)

    def footprint(self, config: Any, *, quantization: str = "", **step: Any) -> Footprint:
        """Estimate bytes by role; ``costs.footprint`` documents the step's arguments.

        ``quantization`` is the scheme of the linear layers' weights, if any.
        """
        saved = saving(self, config, quantization) if quantization else None
        return footprint(self.costs(config), quantized=saved, **step)

    def suggested(self, preset: str, device_type: str) -> dict[str, int]:
        """Return a batch and a sequence that suit the preset on this kind of device."""
        by_device = self.suggestions[preset]
        batch, sequence = by_device.get(device_type, by_device["cpu"])
        return {"batch": batch, "sequence": sequence}

    def default_preset(self, memory_bytes: int, device_type: str) -> str:
        """Return the preset for a first start.

        It is the smallest on a CPU. On a GPU it is the largest up to ``first_choice`` whose
        training step takes at most half of the memory.
        """
        names = list(self.presets)
        if device_type == "cpu":
            return names[0]
        for name in reversed(names[: names.index(self.first_choice) + 1]):
            step: dict[str, Any] = {"workload": "train", **self.suggested(name, device_type)}
            needed = self.footprint(self.presets[name], **step)
            if 2 * needed.total <= memory_bytes:
                return name
        return names[0]

    def build(
        self,
        config: Any,
        device: torch.device | str = "meta",
        dtype: torch.dtype = torch.float32,
    ) -> Model:
        """Build only the structure: parameters without values, on ``device``."""
        self.validate(config)
        with torch.device("meta"):
            model = self.construct(config)
        model.to(dtype)
        if torch.device(device).type != "meta":
            before = list(model.parameters())
            model.to_empty(device=device)
            for old, new in zip(before, model.parameters(), strict=True):
                keep_marks(old, new)
        return model

    def materialise(
        self,
        config: Any,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> Model:
        """Build a model with weights drawn from ``seed``: the same on every device."""
        model = self.build(config)
        initialise(model, torch.device(device), dtype, seed)
        return _with_buffers(model)

    def weights(
        self, config: Any, device: torch.device, dtype: torch.dtype, seed: int, take: Take
    ) -> dict[str, nn.Parameter]:
        """Return the weights of ``materialise`` by name, each replaced by the result of ``take``.

        If ``take`` makes weights smaller, the original weights are never in memory all at once.
        """
        model = self.build(config)
        initialise(model, device, dtype, seed, take)
        return model.weights()

    def share(self, config: Any, weights: Mapping[str, nn.Parameter]) -> Model:
        """Build another model around the same ``weights``: ``model.weights()`` of the first."""
        model = self.build(config)
        model.load_state_dict(weights, assign=True)
        return _with_buffers(model)

    def share_divided(
        self,
        config: Any,
        weights: Mapping[str, nn.Parameter],
        ranks: int,
        region: Region,
        stage: Stage | None = None,
    ) -> Model:
        """Build one rank's shard by ``parallel.tensor_parallel_plan``, around these ``weights``.

        Its sharded layers communicate with the other ranks' in ``region``. With a ``stage``, it is
        a shard of that stage; with one rank, the complete stage.
        """
        model: Any = self.build(config)
        if stage is not None:
            model.narrow(stage)
        if ranks > 1:
            divide(model, ranks, region)
        model.load_state_dict(weights, assign=True)
        return _with_buffers(model)

    def share_experts(self, config: Any, weights: Mapping[str, nn.Parameter], ranks: int) -> Model:
        """Build a model with one rank's experts, around these ``weights``."""
        model = self.build(config)
        divide_experts(model, ranks)
        model.load_state_dict(weights, assign=True)
        return _with_buffers(model)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def _with_buffers(model: Model) -> Model:
    """Compute non-weight buffers on the weights' device; raise if one stays on meta."""
    device = next(model.parameters()).device
    for module in model.modules():
        if hasattr(module, "rebuild_buffers"):
            module.rebuild_buffers(device)
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if left and device.type != "meta":
        raise TypeError(f"buffers without rebuild_buffers() stayed on the meta device: {left}")
    return model
