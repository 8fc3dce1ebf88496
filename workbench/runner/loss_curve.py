"""Does an arm still train as it should? Its losses over some steps against a reference's.

The reference trains a copy of the arm's weights on the same batches, in plain PyTorch and more
digits, from the same moments of AdamW. What the arm may be off is measured too: twice what a plain
model in its own precision is, and its tolerance. Weights, moments and scale are put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

import kernels
from models import Model
from models._initialise import keep_marks
from workbench.runner.arm import Arm
from workbench.runner.training import Trainer, plain_optimizer

STEPS = 8
SLACK = 2.0  # as of a single step
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


@dataclass(frozen=True)
class Curve:
    """Losses of the arm, and the largest distance from the reference's, and what is allowed."""

    losses: list[float]
    difference: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether it trains as it should; not where a loss is not finite."""
        return self.difference <= self.allowed


def applies(arm: Arm) -> bool:
    """Whether the arm trains with moments that a plain AdamW can go on from."""
    return arm.trainer is not None and all(
        state.keys() == _MOMENTS and all(tensor.is_floating_point() for tensor in state.values())
        for state in arm.trainer.optimizer.state.values()
    )


def check(arm: Arm, dtype: torch.dtype, tolerance: float) -> Curve:
    """Compare ``STEPS`` losses with the reference's in ``dtype``; ``tolerance`` is relative."""
    reference = _plain_losses(arm, dtype)
    plain = _plain_losses(arm, None)
    with _put_back(arm):
        own = _own_losses(arm)
    off = [abs(one - other) for one, other in zip(own, reference, strict=True)]
    plain_off = max(abs(one - other) for one, other in zip(plain, reference, strict=True))
    allowed = SLACK * plain_off + tolerance * max(map(abs, reference))
    worst = next((each for each in off if each != each), max(off))  # NaN before all
    return Curve(own, worst, allowed)


def bytes_needed(arm: Arm, dtype: torch.dtype) -> int:
    """Weights, gradients and moments of the reference and the plain model, and what is put back."""
    numbers = sum(parameter.numel() for parameter in arm.model.parameters())
    return numbers * 4 * (dtype.itemsize + 2 * arm.weights_dtype.itemsize)


def _own_losses(arm: Arm) -> list[float]:
    losses = []
    with arm.entered():
        arm.batches.rewind()
        for _ in range(STEPS):
            arm.batches.advance()
            losses.append(arm.step().clone())
    return [float(loss) for loss in losses]


def _plain_losses(arm: Arm, dtype: torch.dtype | None) -> list[float]:
    """Of a copy in ``dtype``, or in the arm's own precision and flags."""
    plain = {name: "torch" for name, op in kernels.OPS.items() if "torch" in op.implementations}
    wrap: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]
    with contextlib.ExitStack() as stack:
        if dtype is None:
            for flag in arm.flags:
                stack.enter_context(flag())
            wrap = arm.autocast
        else:
            wrap = _as_it_is
        stack.enter_context(kernels.using(**plain))
        model, trainer = _copy(arm, dtype or arm.weights_dtype)
        if dtype is None:
            take_choices(model, arm.model)
        losses = []
        arm.batches.rewind()
        for _ in range(STEPS):
            arm.batches.advance()
            batch = [
                x.to(dtype) if dtype is not None and x.is_floating_point() else x
                for x in (*arm.batches.inputs, *arm.batches.targets)
            ]
            loss = wrap(model.loss)(*batch)
            trainer.update(loss)
            losses.append(loss.detach().double())
    return [float(loss) for loss in losses]


def _as_it_is(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return compute


def _copy(arm: Arm, dtype: torch.dtype) -> tuple[Model, Trainer]:
    """A plain model around copies of the arm's weights, and an AdamW with copies of its moments."""
    assert arm.trainer is not None
    copies: dict[int, nn.Parameter] = {}
    weights = {}
    for name, parameter in arm.model.weights().items():
        if id(parameter) not in copies:
            kind = dtype if parameter.is_floating_point() else parameter.dtype
            copied = nn.Parameter(
                parameter.detach().to(kind, copy=True), requires_grad=parameter.requires_grad
            )
            keep_marks(parameter, copied)
            copies[id(parameter)] = copied
        weights[name] = copies[id(parameter)]
    model: Model = arm.situation.family.share(arm.situation.config, weights)
    model.train()
    optimizer = plain_optimizer(copies.values())
    for parameter, state in arm.trainer.optimizer.state.items():
        if id(parameter) in copies:
            copied = copies[id(parameter)]
            optimizer.state[copied] = {
                "step": state["step"].detach().cpu().clone(),
                "exp_avg": state["exp_avg"].detach().to(copied.dtype, copy=True),
                "exp_avg_sq": state["exp_avg_sq"].detach().to(copied.dtype, copy=True),
            }
    return model, Trainer(optimizer, None)


def take_choices(model: Model, other: Model) -> None:
    """Let a model that adapts go on from what another of its structure has chosen."""
    for name, tensor in other.adapted().items():
        model.adapted()[name].copy_(tensor)


@contextlib.contextmanager
def _put_back(arm: Arm) -> Iterator[None]:
    """Leave weights, moments and the scale of the loss as they were, in the tensors they lie in."""
    assert arm.trainer is not None
    tensors = [*arm.model.parameters(), *arm.model.buffers()]
    for state in arm.trainer.optimizer.state.values():
        tensors += state.values()
    scaler = arm.trainer.scaler
    scale = None if scaler is None else scaler.state_dict()
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in zip(tensors, kept, strict=True):
                tensor.copy_(before)
        if scaler is not None and scale:
            _restore_scale(scaler, scale)


def _restore_scale(scaler: torch.amp.GradScaler, before: dict[str, float]) -> None:
    # In place: a captured graph reads these tensors where they are.
    for name, value in (("_scale", "scale"), ("_growth_tracker", "_growth_tracker")):
        tensor = getattr(scaler, name, None)
        if tensor is not None:
            tensor.fill_(before[value])
