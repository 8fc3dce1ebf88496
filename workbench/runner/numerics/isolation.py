"""Isolation of a check: the state of a variant's model is recorded, and everything is restored."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models import Model
from workbench.runner.batches import Batches
from workbench.runner.failures import is_fatal
from workbench.runner.instruments.memory import free_bytes
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.model_state import carried_state as carried
from workbench.runner.model_state import rng, variables
from workbench.runner.model_state.carried_state import Carried, NotCarried, Remembered
from workbench.runner.model_state.run_state import RunState, recorded, restored_buffers
from workbench.runner.numerics.routing_ties import nudged
from workbench.runner.profiling.eager import eager
from workbench.runner.structures import cast_floats, kind, map_tensors
from workbench.runner.user_models import global_flags, user_model
from workbench.runner.user_models.user_model import OwnModel

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Variant

_NO_NUDGE = (0.0, 0)
_OTHER_WEIGHTS = (0.1, 1)  # a nudge, so large that what depends on weights shows it
_PACKAGES = {"torch", "workbench", "models", "kernels"}  # hooks from these are not the user's


@contextlib.contextmanager
def undisturbed(variant: Variant) -> Iterator[Callable[[], None]]:
    """Let calls inside not change the run; yield a function that restores the model's state.

    Raises ``NotRecordable`` or ``NotCarried`` for a model whose state cannot be restored or copied.
    """
    model, device = variant.model, variant.situation.device
    advances, inputs = variant.batches.advances, variant.batches.inputs
    if not isinstance(model, OwnModel):
        with restored_buffers(model, device) as put_back, global_flags.put_back():
            yield put_back
        return
    batch = ("the inputs", (variant.batches.inputs, variant.batches.targets))
    skipped = list(model.parameters()) if variant.divided is not None else []
    weights = ("the weights", _weights_in_place(variant))
    room = free_bytes(device)
    with recorded([*variables.roots(model), batch, weights], model, device, room, skipped) as state:
        variant.remembered = _remembered(variant)
        state.restore()
        try:
            yield state.restore
        finally:
            variant.remembered = None
            variant.batches.advances, variant.batches.inputs = advances, inputs


def _weights_in_place(variant: Variant) -> dict[str, Tensor]:
    """Return the full weights of several ranks if calls of the model can change them.

    They can if they are in the memory of the model's parameters. Shards are computed from them.
    """
    if variant.divided is None:
        return {}
    full = variant.plain_weights()
    addresses = {tensor.data_ptr() for tensor in variant.model.parameters()}
    return dict(full) if addresses >= {tensor.data_ptr() for tensor in full.values()} else {}


@contextlib.contextmanager
def probed(model: Model, device: torch.device) -> Iterator[None]:
    """Let one call of the user's model, before its first step, change nothing."""
    if not isinstance(model, OwnModel):
        yield
        return
    try:
        state = recorded(variables.roots(model), model, device, free_bytes(device))
        state.__enter__()
    except Exception as error:
        if is_fatal(error):
            raise
        yield
        return
    try:
        yield
    finally:
        state.__exit__(None, None, None)


def share(
    situation: Situation,
    source: Model,
    remembered: Remembered | None,
    weights: Mapping[str, Tensor],
    dtype: torch.dtype | None,
) -> Model:
    """Return a plain model around ``weights`` that continues from the state of ``source``.

    In ``dtype``, or in the precision of ``source``. It places its results in new memory.
    """
    config, placing = situation.config, situation.family.inference_only
    if placing:
        config = replace(config, **dict.fromkeys(placing, False))
    model: Model = situation.family.share(config, weights)
    if remembered is None:
        begin_from(model, source.carried())
    else:
        assert isinstance(model, OwnModel)
        remembered.carried.put_into(model, dtype)
    return model


def constants_of(
    remembered: Remembered | None, weights: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return ``weights`` with parameters that are constants taken from the fresh build."""
    exact = {} if remembered is None else remembered.exact
    return {
        name: exact[name].to(value.device, kind(value, dtype)) if name in exact else value
        for name, value in weights.items()
    }


def begin_from(model: Model, values: Mapping[str, Tensor]) -> None:
    """Set a model's buffers to those of an earlier state, of itself or of an equal structure."""
    for name, tensor in values.items():
        model.carried()[name].copy_(tensor)


def kept_state(model: Model, batches: Batches, device: torch.device) -> Callable[[], None]:
    """Return a function that restores the present state of a plain model and of the inputs."""
    if not isinstance(model, OwnModel):
        before = {name: tensor.clone() for name, tensor in model.carried().items()}
        return lambda: begin_from(model, before)
    batch = ("the inputs", (batches.inputs, batches.targets))
    room = free_bytes(device)
    return RunState([*variables.roots(model), batch], room).restore


def _remembered(variant: Variant) -> Remembered:
    """Compare the variant's model with a fresh build of its file."""
    model, config = variant.model, variant.situation.config
    assert isinstance(model, OwnModel)
    fresh = user_model.fresh(config)
    if _own_hooks(model) > _own_hooks(fresh):  # attributes may say so, and would be carried alone
        raise NotCarried("calls of the model register hooks")
    built = variables.variables(fresh)
    changed = carried.find(model, fresh, variant.weights_dtype)
    parameters = carried.parameter_names(model)
    exact = {}
    if variant.weights_dtype.itemsize < 4:
        weights = model.weights()
        for name, parameter in fresh.weights().items():
            weight = weights.get(name)
            if weight is None or parameter.requires_grad or weight.shape != parameter.shape:
                continue
            rounded = parameter.detach().to(weight.device, weight.dtype)
            if torch.equal(rounded, weight):
                exact[name] = parameter.detach()
    built = {
        name: replace(variable, value=carried.copied(variable.value, name))
        for name, variable in built.items()
        if name in changed
    }
    _refuse_state_of_ranks(variant, changed)
    unclear = carried.unclear(changed, built)
    carried_state = Carried(changed, built, {}, unclear, parameters)
    suspects = [name for name, value in changed.items() if carried.has_floats(value)]
    if suspects and variant.situation.has(Trait.ROUNDED):
        constants = _constants(
            variant.situation, model, variant.plain_weights(), variant.batches, suspects, built
        )
        unclear = tuple(name for name in unclear if name not in constants)
        carried_state = Carried(changed, built, constants, unclear, parameters)
    return Remembered(carried_state, exact)


def _own_hooks(model: Model) -> int:
    """Return how many hooks of the model's modules come from the packages of these modules.

    Others may come from toggles, and belong to what is checked.
    """
    modules = list(model.modules())
    packages = {_package(type(module)) for module in modules} - _PACKAGES
    hooks = (
        getattr(hook, "func", hook)
        for module in modules
        for name, registered in vars(module).items()
        if name.endswith("_hooks") and isinstance(registered, dict)
        for hook in registered.values()
    )
    return sum(_package(hook) in packages for hook in hooks)


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _refuse_state_of_ranks(variant: Variant, changed: Mapping[str, Any]) -> None:
    """Raise ``NotCarried`` if state depends on the batch: each rank has other rows of it.

    Only the state of rank 0 is known here. Buffers are no such state, as ranks exchange them.
    """
    if variant.divided is None or variant.divided.layout.data == 1:
        return
    model, weights, batches = variant.model, variant.plain_weights(), variant.batches
    buffers = {name for name, value in variables.variables(model).items() if value.is_buffer}
    names = [name for name in changed if name not in buffers]
    if not names:
        return
    call = functools.partial(_variables_after, variant.situation, model, weights, names, _NO_NUDGE)
    try:
        (first,), (second,) = call(batches.inputs), call(batches.following()[0])
    except Exception as error:
        if is_fatal(error):
            raise
        return
    for name, value in first.items():
        if not carried.same_values(value, second.get(name)):
            raise NotCarried(f"{name} depends on the batch, and each rank has other rows of it")


def _constants(
    situation: Situation,
    source: Model,
    plain_weights: Mapping[str, Tensor],
    batches: Batches,
    names: list[str],
    built: Mapping[str, variables.Variable],
) -> dict[str, Any]:
    """Return the variables, in FP32, that the first call computes from nothing but constants."""
    current, following = batches.inputs, batches.following()[0]

    call = functools.partial(_variables_after, situation, source, plain_weights, names)
    try:
        first, second = call(_NO_NUDGE, current, following)
        (third,) = call(_OTHER_WEIGHTS, following)
    except Exception as error:
        if is_fatal(error):
            raise
        return {}
    constants = {}
    for name, value in first.items():
        initial = built[name].value if name in built else None
        alike = carried.same_values(value, second.get(name)) and carried.same_values(
            value, third.get(name)
        )
        if alike and not carried.same_values(value, initial):
            constants[name] = value
    return constants


def _variables_after(
    situation: Situation,
    source: Model,
    plain_weights: Mapping[str, Tensor],
    names: list[str],
    nudge: tuple[float, int],
    *inputs: Any,
) -> list[dict[str, Any]]:
    """Return the variables ``names`` after each call of a new model in FP32 with these inputs."""
    weights = {
        name: nudged(weight.detach().to(kind(weight, torch.float32), copy=True), nudge, index)
        for index, (name, weight) in enumerate(plain_weights.items())
    }
    model = situation.family.share(situation.config, weights)
    rng.copy_modes(model, source)
    left = []
    for batch in inputs:
        with torch.no_grad(), eager():
            model(*map_tensors(cast_floats(batch, torch.float32), torch.clone))
        updated = variables.variables(model)
        left.append(
            {name: carried.copied(updated[name].value) for name in names if name in updated}
        )
    return left
