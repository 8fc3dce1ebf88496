"""What a model family is: its configuration, its presets, and how its models come into being.

Structure and weights are apart. ``materialise`` makes a model with weights of its own; ``share``
makes another model of the same configuration around the *same* parameters, so that two variants
(checkpointed and not, compiled and not) train one set of weights and one optimizer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from models._costs import Costs, flops
from models._division import Region, divide
from models._footprint import Footprint, footprint
from models._initialise import Take, initialise, keep_marks
from models._mistake import ConfigurationError
from models._model import Metric, Model
from models._quantized import saving
from models._stages import Stage

Batch = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]  # inputs, targets
WORKLOADS = ("forward", "train", "prefill", "decode", "generate")


@dataclass(frozen=True)
class ConfigField:
    """One field of a family's configuration, with what it may be."""

    name: str
    title: str
    help: str
    kind: type  # bool, int, float or str
    default: Any
    choices: tuple[Any, ...]
    minimum: float | None
    maximum: float | None
    weights: bool  # whether a model's weights depend on it


def setting(
    default: Any,
    title: str,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[Any, ...] = (),
    weights: bool = True,
) -> Any:
    """A dataclass field that also says what it means and what it may be.

    ``weights`` False: models that differ in it alone have the same weights, and can share them.
    """
    metadata = {
        "title": title,
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "weights": weights,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One model family; every file of this folder without a leading underscore ends in one."""

    name: str
    title: str
    help: str
    config: type[Any]  # a frozen dataclass made of ``setting`` fields
    presets: Mapping[str, Any]  # from small to large
    suggestions: Mapping[str, Mapping[str, tuple[int, int]]]  # preset: device: batch, sequence
    construct: Callable[[Any], Model]
    check: Callable[[Any], None]  # raises ConfigurationError for what no single field shows
    costs: Callable[[Any], Costs]
    workloads: tuple[str, ...] = WORKLOADS
    length_field: str = "max_sequence"  # the field of the configuration that bounds a sequence
    inference_only: tuple[str, ...] = ()  # fields that no training step may have switched on
    first_choice: str = "base"  # the largest preset that is chosen unasked
    metrics: tuple[Metric, ...] = ()  # what its models measure of themselves
    # (config, workload) to the operators of ``kernels`` that a step calls, those behind a switch of
    # the model (fused add + norm, fused loss) among them. None: not known beforehand.
    operators: Callable[[Any, str], frozenset[str]] | None = None
    # Of a family whose inputs are no tokens: (config, batch, sequence, generator) to a random batch
    # of inputs and targets on the CPU.
    draw: Callable[[Any, int, int, torch.Generator], Batch] | None = None

    def fields(self) -> list[ConfigField]:
        """The configuration's fields, for forms and for the command line."""
        return list(self._fields)

    @functools.cached_property
    def _fields(self) -> tuple[ConfigField, ...]:
        kinds = typing.get_type_hints(self.config)  # takes 2 ms: it compiles each annotation
        return tuple(
            ConfigField(
                name=each.name, kind=kinds[each.name], default=each.default, **each.metadata
            )
            for each in dataclasses.fields(self.config)
        )

    def of_weights(self, config: Any) -> Any:
        """The configuration with everything as by default that its weights do not depend on."""
        free = {each.name: each.default for each in self.fields() if not each.weights}
        return dataclasses.replace(config, **free)

    def configure(self, preset: str, overrides: Mapping[str, Any] | None = None) -> Any:
        """The preset with fields replaced, validated; text is read as the field's kind.

        Raises ``ConfigurationError``.
        """
        if preset not in self.presets:
            raise ConfigurationError(
                f"{self.name}: unknown preset {preset!r}; expected one of {tuple(self.presets)}"
            )
        known = {each.name: each for each in self.fields()}
        values = {}
        for name, value in (overrides or {}).items():
            if name not in known:
                raise ConfigurationError(
                    f"{self.name}: unknown field {name!r}; expected one of {tuple(known)}"
                )
            values[name] = self._read(known[name], value)
        config = dataclasses.replace(self.presets[preset], **values)
        self.validate(config)
        return config

    def validate(self, config: Any) -> None:
        """Raise ``ConfigurationError`` with one sentence unless the configuration can be built."""
        if not isinstance(config, self.config):
            raise ConfigurationError(
                f"{self.name}: expected a {self.config.__name__}, got {type(config).__name__}"
            )
        for each in self.fields():
            value = getattr(config, each.name)
            if isinstance(value, str) and each.kind is not str:
                raise self._not_of_kind(each, value)
            if isinstance(value, float) and each.kind is int:  # not even a whole one: it is a size
                raise self._not_of_kind(each, value)
            self._read(each, value)
            self._check_choice(each, value)
            low, high = each.minimum, each.maximum
            if (low is not None and value < low) or (high is not None and value > high):
                raise ConfigurationError(
                    f"{self.name}: {each.name} = {_shown(value)} is outside of {low} to {high}"
                )
        self.check(config)

    def check_choice(self, name: str, value: Any) -> None:
        """Raise ``ConfigurationError`` for what a field that is a switch or a choice never is.

        Any other field of that name, and any other name, is let pass.
        """
        for each in self.fields():
            if each.name == name and (each.choices or each.kind is bool):
                self._check_choice(each, self._read(each, value))

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
        """Refuse by sentence what no such step can be, before anything is allocated.

        That is what the workload does not allow, and what cannot fit ``memory_bytes``.

        Judges by weights, optimizer and activations as estimated; pass more memory than there is
        to let what is near the limit try and run out of memory in earnest.
        """
        for name in self.inference_only if workload == "train" else ():
            if getattr(config, name):
                raise ConfigurationError(
                    f"{self.name}: {name} overwrites what a backward pass needs; switch it off to "
                    "train, or choose a workload of inference"
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
        """Tokens of the longest sequence that a model takes; without such a field, any number."""
        longest: int = getattr(config, self.length_field, sys.maxsize)
        return longest

    def parameter_count(self, config: Any) -> int:
        """Trainable numbers, by formula: nothing is built."""
        return self.costs(config).parameters

    def flops(
        self, config: Any, batch: int, sequence: int, training: bool = False, **more: Any
    ) -> int:
        """FLOPs of one step; see ``models._costs.flops`` for ``context`` and ``last_only``."""
        costs = self.costs(config)
        return flops(costs, batch=batch, sequence=sequence, training=training, **more)

    def footprint(self, config: Any, *, quantization: str = "", **step: Any) -> Footprint:
        """Estimated bytes by role; ``models._footprint.footprint`` says what describes a step.

        ``quantization`` is the scheme of the linear layers' codes, if any.
        """
        saved = saving(self, config, quantization) if quantization else None
        return footprint(self.costs(config), quantized=saved, **step)

    def suggested(self, preset: str, device_type: str) -> dict[str, int]:
        """A batch and a sequence that show the preset at work on this kind of device."""
        by_device = self.suggestions[preset]
        batch, sequence = by_device.get(device_type, by_device["cpu"])
        return {"batch": batch, "sequence": sequence}

    def default_preset(self, memory_bytes: int, device_type: str) -> str:
        """The preset for a first start: the smallest on a CPU; on a GPU the largest up to
        ``first_choice`` whose training step takes at most half of the memory.
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
        """The structure alone: parameters without values, on ``device``."""
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
        """A model with weights drawn from ``seed``: the same ones on every device."""
        model = self.build(config)
        initialise(model, torch.device(device), dtype, seed)
        return _with_buffers(model)

    def weights(
        self, config: Any, device: torch.device, dtype: torch.dtype, seed: int, take: Take
    ) -> dict[str, nn.Parameter]:
        """The weights that ``materialise`` gives, by name, each as ``take`` leaves it.

        One that ``take`` makes smaller never is in memory with all others.
        """
        model = self.build(config)
        initialise(model, device, dtype, seed, take)
        return model.weights()

    def share(self, config: Any, weights: Mapping[str, nn.Parameter]) -> Model:
        """Another model around the very ``weights`` of one: ``model.weights()`` of the first."""
        model = self.build(config)
        model.load_state_dict(weights, assign=True)
        return _with_buffers(model)

    def share_divided(
        self, config: Any, weights: Mapping[str, nn.Parameter], ranks: int, region: Region
    ) -> Model:
        """A model of what one rank has, as ``models._division`` cuts, around these ``weights``.

        Its divided layers meet the other ranks' in ``region``.
        """
        model = self.build(config)
        divide(model, ranks, region)
        model.load_state_dict(weights, assign=True)
        return _with_buffers(model)

    def share_stage(self, config: Any, weights: Mapping[str, nn.Parameter], stage: Stage) -> Model:
        """A model of one ``stage``, around its ``weights`` by their names there."""
        model: Any = self.build(config)
        model.narrow(stage)
        model.load_state_dict(weights, assign=True)
        return _with_buffers(model)

    def _read(self, field: ConfigField, value: Any) -> Any:
        """``value`` as the field's kind; raises ``ConfigurationError``."""
        try:
            return _READERS[field.kind](value)
        except (ValueError, TypeError, OverflowError):
            raise self._not_of_kind(field, value) from None

    def _check_choice(self, field: ConfigField, value: Any) -> None:
        if field.choices and value not in field.choices:
            raise ConfigurationError(
                f"{self.name}: {field.name} = {_shown(value)} is not one of {field.choices}"
            )

    def _not_of_kind(self, field: ConfigField, value: Any) -> ConfigurationError:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        return ConfigurationError(
            f"{self.name}: {field.name} = {_shown(value)} is not {names[field.kind]}"
        )


def _read_bool(value: Any) -> bool:
    words = {"true": True, "1": True, "on": True, "yes": True} | dict.fromkeys(
        ("false", "0", "off", "no"), False
    )
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(float(value)):
        raise ValueError
    return float(value)


def _read_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


_READERS: dict[type, Callable[[Any], Any]] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
}


def _shown(value: Any) -> str:
    """The value for a sentence, cut where it is long; Python refuses to print huge integers."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def _with_buffers(model: Model) -> Model:
    """Compute the constants that are no weights where the weights are; none may stay behind."""
    device = next(model.parameters()).device
    for module in model.modules():
        if hasattr(module, "rebuild_buffers"):
            module.rebuild_buffers(device)
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if left and device.type != "meta":
        raise TypeError(f"buffers without rebuild_buffers() stayed on the meta device: {left}")
    return model
