"""Comparison of what a variant computes with what it would compute with one option off.

Two models with the same weights are called on the same batch: the variant's model, and one without
the option. Neither is compiled or captured. The comparison covers their outputs, bit by bit, and
the operators that ran, by shapes and dtypes. If an option changes which weights exist, only the
operators of both steps are compared, counted on tensors without storage. The variant does not
change: its weights, buffers and random state remain the same.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import kernels
from kernels import Operator, watched
from models import Model
from models.layers.quantized_linear import quantize_linears
from sessions.numbers import counted
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.interfaces import Situation
from workbench.runner.model_state import rng
from workbench.runner.profiling import instrumented
from workbench.runner.profiling.eager import eager
from workbench.runner.roofline import flop_formulas
from workbench.runner.roofline.counter import PLAIN, is_view
from workbench.runner.toggles import Stage, Trait, toggles_before
from workbench.runner.user_models.user_model import OwnModel
from workbench.runner.variants.assembly import apply_toggles, autocast, make_bench, make_compute
from workbench.runner.variants.build import Build

if TYPE_CHECKING:
    from workbench.runner.variants.observed import Observed

_NAMED = 3  # operators named in a sentence


@dataclass
class Work:
    """Operators that ran. ``library`` are those of ``kernels``, by implementation."""

    calls: Counter[Any] = field(default_factory=Counter)
    library: Counter[str] = field(default_factory=Counter)
    flops: int = 0


@dataclass(frozen=True)
class Comparison:
    """Two sides: ``own``, the variant, and ``off``, the same with the option off.

    ``error`` is the Euclidean distance of the outputs relative to their norm: 0 if all bits are
    equal, None if the sides have different weights. ``noise`` is the distance of two calls of the
    own side.
    """

    error: float | None
    noise: float
    own: Work
    off: Work

    @property
    def same_work(self) -> bool:
        """Return True if the same operators ran on the same shapes and dtypes."""
        return self.own.calls == self.off.calls

    @property
    def identical(self) -> bool:
        """Return True if both sides compute the same."""
        repeats = self.error is None or self.error <= 2 * self.noise
        return repeats and self.same_work

    def text(self) -> str:
        """Return what differs, as a clause."""
        parts = []
        if self.error is not None:
            differ = f"outputs differ by {self.error:.2g} of their norm"
            parts.append(differ if self.error else "outputs are bit-identical")
        own_calls, off_calls = self.own.library, self.off.library
        changed = [
            name
            for name in dict.fromkeys([*own_calls, *off_calls])
            if own_calls[name] != off_calls[name]
        ]
        parts += [
            f"{name}: {counted(own_calls[name], 'call')} instead of {off_calls[name]}"
            for name in changed[:_NAMED]
        ]
        if self.own.flops != self.off.flops and self.off.flops:
            parts.append(f"{self.own.flops / self.off.flops:.3g} times the FLOPs")
        elif not self.same_work and not changed:
            counts = [sum(side.calls.values()) for side in (self.own, self.off)]
            same = counts[0] == counts[1]
            parts.append(
                f"{counted(counts[0], 'operator')}, with other shapes or dtypes"
                if same
                else f"{counted(counts[0], 'operator')} instead of {counts[1]}"
            )
        return "; ".join(parts)


def without(situation: Situation, toggle: str, off_option: str) -> Situation:
    """Return the situation with a toggle off; for toggles that change no field of the model."""
    configuration = situation.configuration
    toggles = {**configuration.toggles, toggle: off_option}
    changed = msgspec.structs.replace(configuration, toggles=toggles)
    return replace(situation, configuration=changed)


def kernel_choices(situation: Situation) -> dict[str, str]:
    """Return the implementations that a situation's toggles choose, by operator."""
    build = _build(situation)
    return build.kernel_choices


def compare(observed: Observed, off_situation: Situation) -> Comparison | None:
    """Compare the variant with a situation that differs in one option.

    The operators of sides with different weights are counted with tensors without storage. Return
    None where these operators depend on the values of tensors.
    """
    if not _same_weights(observed.situation, off_situation):
        from torch._subclasses.fake_tensor import DataDependentOutputException

        from workbench.runner.variants.fake_step import count

        try:
            toggles = toggles_before(Stage.COMPILE)
            if not observed.step_tallies:
                observed.step_tallies.append(count(observed.situation, toggles))
            own_tally, off_tally = observed.step_tallies[0], count(off_situation, toggles)
        except DataDependentOutputException:
            return None
        return Comparison(None, 0.0, _counted(own_tally.calls), _counted(off_tally.calls))
    model = observed.model if observed.divided is None else None
    own_run, repeated_run = (_outputs(observed, observed.situation, model) for _ in range(2))
    other = _outputs(observed, off_situation)
    return Comparison(
        _distance(own_run[0], other[0]),
        _distance(own_run[0], repeated_run[0]),
        own_run[1],
        other[1],
    )


def settled(observed: Observed, situation: Situation, calls: int) -> Model:
    """Return a model with the variant's weights that has adapted in each of ``calls`` calls."""
    config = replace(situation.config, refresh_every=1)
    build = _build(replace(situation, config=config))
    model: Model = situation.family.share(config, observed.plain_weights())
    compute = autocast(build.autocast, situation.device.type)(model)
    with _active_settings(observed.model, build), torch.no_grad():
        for _ in range(calls):
            compute(*observed.all_batches.inputs)
    return model


def kept_bytes(observed: Observed, situation: Situation) -> int:
    """Return the bytes that autograd saves in one call on few inputs, without the weights."""
    if not any(x.requires_grad for x in observed.model.parameters()):
        return 0
    build = _build(situation)
    model = _model(observed, build)
    own_addresses = {
        x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())
    }
    saved: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own_addresses:
            saved[storage.data_ptr()] = storage.nbytes()
        return x.detach()  # an output that an operator saves itself would never be freed

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    compute = autocast(build.autocast, situation.device.type)(model)
    with _active_settings(observed.model, build), torch.enable_grad():
        if isinstance(model, OwnModel):  # a first call examines it, and is not checkpointed
            compute(*observed.batches.few)
        with hooks:
            output = compute(*observed.batches.few)
    del output  # alive until here, as the graph keeps its tensors
    return sum(saved.values())


def _same_weights(first: Situation, second: Situation) -> bool:
    shapes = [
        {name: x.shape for name, x in situation.family.build(situation.config).weights().items()}
        for situation in (first, second)
    ]
    return shapes[0] == shapes[1]


def _build(situation: Situation) -> Build:
    build = Build(situation, PhaseTracker(lambda phase: None))
    apply_toggles(build, toggles_before(Stage.COMPILE))
    return build


def _model(observed: Observed, build: Build) -> Model:
    situation = build.situation
    model: Model = situation.family.share(situation.config, observed.plain_weights())
    model.train(situation.workload.trains)
    rng.copy_modes(model, observed.model)
    for name, values in observed.model.adapted().items():
        if name in model.adapted():
            model.adapted()[name].copy_(values)
    if build.quantization:
        quantize_linears(model, build.quantization)
    model.share_rope_cache(False)
    for transform in build.transforms:
        transform(model)
    return model


@contextlib.contextmanager
def _active_settings(model: Model, build: Build) -> Iterator[None]:
    """Apply the build's settings for its steps; counters and generators are restored at the end."""
    with contextlib.ExitStack() as stack:
        for flag in build.flags:
            stack.enter_context(flag())
        stack.enter_context(kernels.using(all="auto", **build.kernel_choices))
        stack.enter_context(rng.put_back(model, build.situation.device))
        # Only if something may be compiled: the import takes seconds.
        if isinstance(model, OwnModel) or build.situation.has(Trait.COMPILED):
            stack.enter_context(eager())
        yield


@contextlib.contextmanager
def _unchanged(model: Model) -> Iterator[None]:
    """Restore the buffers after calls that write to them."""
    buffers = {name: x.clone() for name, x in model.named_buffers()}
    try:
        yield
    finally:
        for name, x in model.named_buffers():
            x.copy_(buffers[name])


def _outputs(
    observed: Observed, situation: Situation, model: Model | None = None
) -> tuple[Tensor, Work]:
    """Return the flattened outputs of one call, and what ran; a new model if none is given."""
    build, work = _build(situation), Work()
    workload = situation.workload
    with _active_settings(observed.model, build), torch.no_grad():
        called = _model(observed, build) if model is None else model
        with _unchanged(called):
            compute = make_compute(build, make_bench(situation, called, observed.all_batches))
        with _unchanged(called), watched(_watch(work)), _Record(work):
            out = instrumented.computed(compute, workload, observed.all_batches)
    values = [x.detach().reshape(-1) for x in tree_leaves(out) if isinstance(x, Tensor)]
    return torch.cat([x.clone() for x in values]), work


def _watch(work: Work) -> Any:
    """Return a callback for the library's calls that counts each call and runs it."""

    def watch(op: Operator, name: str, args: tuple[Any, ...]) -> Any:
        label = f"{op.name} by {name}"
        work.library[label] += 1
        work.calls[label, _signature(args)] += 1
        if name in PLAIN:
            return op.implementations[name].call(*args)
        work.flops += op.cost(**op.named(args)).forward.flops
        with _disable_current_modes():  # a kernel is one call, and flex attention is compiled
            return op.implementations[name].call(*args)

    return watch


class _Record(TorchDispatchMode):
    """Counts the torch operators that run in its context."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        flop_formulas.register()
        self._work = work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not is_view(func):
            self._work.calls[str(func), _signature((args, kwargs, out))] += 1
            formula = flop_registry.get(func._overloadpacket)
            self._work.flops += int(formula(*args, **kwargs, out_val=out)) if formula else 0
        return out


def _signature(values: Any) -> tuple[Any, ...]:
    return tuple((x.shape, x.dtype) for x in tree_leaves(values) if isinstance(x, Tensor))


def _counted(calls: Any) -> Work:
    return Work(Counter(calls), flops=sum(call.flops for call in calls))


def _distance(first: Tensor, second: Tensor) -> float:
    """Return the relative Euclidean distance; 0 only if all bits are equal."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return float("inf")
    if torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)):
        return 0.0
    wide = [x.double() for x in (first, second)]
    distance = float((wide[0] - wide[1]).norm() / wide[1].norm().clamp_min(1e-300))
    return float("inf") if math.isnan(distance) else max(distance, sys.float_info.min)
