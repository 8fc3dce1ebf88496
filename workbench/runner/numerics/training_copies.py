"""Copies of a variant to train beside it; the variant is restored."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from models import Model
from models.initialisation import keep_marks
from models.layers.fake_quantized import fake_quantize_as
from workbench.runner.model_state import rng
from workbench.runner.model_state.carried_state import NotCarried
from workbench.runner.model_state.run_state import are_same
from workbench.runner.numerics.isolation import constants_of, share
from workbench.runner.numerics.routing_ties import Nudge, nudged
from workbench.runner.structures import kind
from workbench.runner.training.trainer import (
    Parameters,
    Trainer,
    is_plain,
    plain_optimizer,
    restore_scale,
)
from workbench.runner.variants.variant import Variant


def distinct(weights: Parameters) -> list[nn.Parameter]:
    """Return each parameter once."""
    return list({id(parameter): parameter for parameter in weights.values()}.values())


def copy_of(
    variant: Variant, requested: torch.dtype | None, nudge: Nudge, *, fresh: bool, ranks: int = 1
) -> tuple[list[Model], Trainer, dict[int, nn.Parameter]]:
    """Return plain models of the variant's copied weights, their AdamW, and the copies.

    The copies are by the id of the variant's parameter. ``requested``: their dtype; None: the
    variant's. ``nudge``: noise that is added. ``fresh``: AdamW starts without moments. ``ranks``:
    the number of models. All have the same weights, and each has its own buffers, as ranks have.
    """
    assert variant.full_trainer is not None
    dtype = requested or variant.weights_dtype
    copies: dict[int, nn.Parameter] = {}
    weights: dict[str, Tensor] = {}
    originals = variant.plain_weights()
    exact = originals if requested is None else constants_of(variant.remembered, originals, dtype)
    for name, parameter in originals.items():
        if id(parameter) not in copies:
            cast = exact[name].detach().to(kind(parameter, dtype), copy=True)
            value = nudged(cast, nudge, len(copies))
            copied = nn.Parameter(value, requires_grad=parameter.requires_grad)
            keep_marks(parameter, copied)
            copies[id(parameter)] = copied
        weights[name] = copies[id(parameter)]
    models = []
    for _ in range(ranks):
        model = share(variant.situation, variant.model, variant.remembered, weights, requested)
        fake_quantize_as(model, variant.model)
        model.train()
        model.set_checkpointing("full")  # gives equal results, and saves memory
        rng.copy_modes(model, variant.model)
        models.append(model)
    optimizer = plain_optimizer(copies.values())
    for parameter, state in variant.full_trainer.optimizer.state.items():
        if not fresh and id(parameter) in copies:
            copied = copies[id(parameter)]
            optimizer.state[copied] = {
                "step": state["step"].detach().cpu().clone(),
                "exp_avg": state["exp_avg"].detach().to(copied.dtype, copy=True),
                "exp_avg_sq": state["exp_avg_sq"].detach().to(copied.dtype, copy=True),
            }
    return models, Trainer(optimizer, None), copies


class RankGradients:
    """The mean of the gradients of several ranks, as data parallelism computes it.

    Hooks of parameters see the gradients of one rank. ``sent_dtype``: the dtype to which ranks
    round them; None: they are not rounded.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        scaler: torch.amp.GradScaler | None,
        sent_dtype: torch.dtype | None,
    ) -> None:
        self._parameters = list(parameters)
        self._scaler, self._sent_dtype = scaler, sent_dtype
        self._means: dict[nn.Parameter, Tensor] = {}

    def compute(self, losses: Sequence[Callable[[], Tensor]], *, by_value: bool) -> Tensor:
        """Run the forward and backward pass of each rank; return the mean of the losses.

        Raises ``NotCarried`` if a forward pass changes weights, as each rank would its own.
        ``by_value``: also if torch does not count the change (``.data``), which needs copies.
        """
        values = []
        for compute_loss in losses:
            with _unchanged(self._parameters, by_value=by_value):
                loss = compute_loss()
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            self._add(len(losses))
            values.append(loss.detach())
        return torch.stack(values).mean()

    def store(self, _: Tensor) -> None:
        """Let the parameters have the means as their gradients, in place of a backward pass."""
        for parameter, mean in self._means.items():
            parameter.grad = mean.to(parameter.dtype)

    def _add(self, ranks: int) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                sent = parameter.grad.to(self._sent_dtype or parameter.dtype) / ranks
                before = self._means.get(parameter)
                self._means[parameter] = sent if before is None else before + sent
                parameter.grad = None


@contextlib.contextmanager
def _unchanged(weights: Sequence[Tensor], *, by_value: bool) -> Iterator[None]:
    """Raise ``NotCarried`` if weights are changed inside."""
    versions = [weight._version for weight in weights]
    values = [weight.detach().clone() for weight in weights] if by_value else []
    yield
    pairs = zip(weights, values, strict=False)  # there may be no values
    if versions != [weight._version for weight in weights] or not all(
        are_same(weight, value) for weight, value in pairs
    ):
        raise NotCarried("calls of the model change weights, on each rank its own")


@contextlib.contextmanager
def restored(
    weights: Parameters, buffers: Iterable[Tensor], full_trainer: Trainer
) -> Iterator[dict[int, Tensor]]:
    """Restore weights, gradients, buffers, moments and loss scale in place at the end.

    Yields copies of the weights, by the id of the parameter. A step that fails half-way, for lack
    of memory, leaves gradients, and a scaler that takes those of the next step for unscaled ones.
    """
    parameters = distinct(weights)
    gradients = [parameter.grad for parameter in parameters]
    tensors = [*parameters, *buffers]
    if is_plain(full_trainer):
        for state in full_trainer.optimizer.state.values():
            tensors += state.values()
    scaler = full_trainer.scaler
    scale = None if scaler is None else scaler.state_dict()
    stages = {} if scaler is None else dict(scaler._per_optimizer_states)
    copies = [tensor.detach().clone() for tensor in tensors]
    try:
        yield dict(zip(map(id, parameters), copies, strict=False))
    finally:
        with torch.no_grad():
            for tensor, before in zip(tensors, copies, strict=True):
                tensor.copy_(before)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if scaler is not None and scale:
            restore_scale(scaler, scale)
            scaler._per_optimizer_states.clear()
            scaler._per_optimizer_states.update(stages)


@contextlib.contextmanager
def fresh_moments(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let the optimizer start with new moments, and restore its earlier ones at the end."""
    state, optimizer.state = optimizer.state, collections.defaultdict(dict)
    try:
        yield
    finally:
        optimizer.state = state


@contextlib.contextmanager
def restored_training(variant: Variant, *, fresh: bool) -> Iterator[dict[int, Tensor]]:
    """Restore what steps of a variant change, as ``restored``; yield copies of the weights.

    ``fresh``: the optimizer starts with new moments.
    """
    full_trainer = variant.full_trainer
    assert full_trainer is not None
    with (
        restored(variant.plain_weights(), variant.model.buffers(), full_trainer) as copies,
        fresh_moments(full_trainer.optimizer) if fresh else contextlib.nullcontext(),
    ):
        yield copies
