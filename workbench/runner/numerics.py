"""Are an arm's numbers still right? Its outputs on one batch against a reference in more digits.

The reference is the plain model of the arm's own weights, every operator in PyTorch, in FP64 where
that fits, else in FP32. What an arm may be off is measured too, and not typed in: twice the error
that the plain model makes in the arm's precision, and one rounding of its dtype.

Where an arm quantizes, that plain model is quantized too, by the operator's definition; so what is
allowed is twice the scheme's own error. Since a scheme might ruin a model, that error is bounded:
at most ``SLACK`` times what independent roundings, one a layer, would add up to.

A model that chooses (experts, tokens) may go another way where two candidates lie within a rounding
of each other: an arm that is too far off is red only if ``ties`` finds none that explain it.

A model of one's own may draw random numbers: if two calls of the plain one differ, it is not
checked. What its calls leave in buffers, every copy of it goes on from.

A model that adapts is judged in the state it is in, which checking leaves as it was: the plain one
in the arm's precision makes the same choices, and the reference none. So what is allowed is twice
what the choices do by their definition, and at most what the model promises of them.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch

import kernels
from models import Model
from models._model import Promise
from models._quantized import QuantizedLinear, expected_error, quantize_linears
from sessions.model import Numerics
from sessions.sizes import size_text
from workbench.runner import loss_curve, ties
from workbench.runner.arm import Arm
from workbench.runner.ceilings import fp32_products
from workbench.runner.compiles import eager
from workbench.runner.failures import Mistake, explain, is_fatal
from workbench.runner.loss_curve import Between, Curve, carry, go_on, take_choices
from workbench.runner.outputs import measurable, tensors
from workbench.runner.ties import Nudge, Nudges, nudged
from workbench.runner.toggles import Situation
from workbench.runner.training import forget_graph
from workbench.runner.weights import Parameters
from workbench.runner.workloads import Compute

ALIKE = 1e-5  # relative; atomic sums make two calls differ by less
SLACK = 2.0  # times the error of the plain model in the same precision
TIED = " where rounding decides between choices"
_PIECE = 1 << 24  # outputs that are compared at a time
_ROOM = 4  # times the reference's weights and outputs must be free for it


class PutOff(Exception):  # noqa: N818 - a request, not an error
    """A check was ended for something more urgent, and nothing is known."""


@dataclass(frozen=True)
class Distance:
    """How far outputs are from the reference's."""

    max_error: float
    relative_error: float
    mse: float
    cosine: float


@dataclass(frozen=True)
class Outputs:
    """What a model gives for the batch: outputs, and the loss where it is trained."""

    values: torch.Tensor
    loss: float | None
    promise: Promise | None = None
    several: tuple[torch.Tensor, ...] = ()  # where the model gives more than ``values``

    @classmethod
    def of(cls, output: Any, loss: float | None, promise: Promise | None = None) -> Outputs:
        """Of whatever a model gives; raises ``Mistake`` where nothing of it can be compared."""
        found = tuple(measurable(output))
        if not found:
            raise Mistake("the outputs hold no floating-point numbers, which could be compared")
        return cls(found[0], loss, promise, found if len(found) > 1 else ())

    @property
    def all(self) -> tuple[torch.Tensor, ...]:
        """Each output."""
        return self.several or (self.values,)

    def at(self, place: int) -> Outputs:
        """The same with this output for ``values``."""
        return replace(self, values=self.all[place])


def _unwrapped(compute: Compute) -> Compute:
    return compute


def check(arm: Arm, situation: Situation, between: Between = go_on) -> Numerics:
    """Compare the arm with its reference, outside of all timing; never raises but fatally.

    What lacks the memory, or a reference, is not checked; whatever else goes wrong is wrong.
    ``between`` is called between its parts and may end it by raising ``PutOff``; the arm is left
    as it was, even so.
    """
    name = ""
    try:
        with _plain_kernels():
            weights = arm.plain_weights()
            reference, name = _reference(arm, situation, weights)
        between()
        with _choices_kept(arm) as put_back:
            return _judge(arm, situation, weights, reference, name, put_back, between)
    except PutOff:
        raise
    except Exception as error:
        if is_fatal(error):
            raise
        failure = explain(error)
    gc.collect()
    if not name or failure.kind == "out-of-memory":
        return Numerics(reference="", ok=None, text=f"not checked: {failure.sentence}")
    return Numerics(reference=name, ok=False, text=f"the check failed: {failure.sentence}")


def distance(values: torch.Tensor, reference: torch.Tensor) -> Distance:
    """Errors of ``values`` against ``reference``, of one shape; not finite where a value is not.

    Infinities that both have in one place (a mask's) are right, and count for nothing else.
    """
    if values.shape != reference.shape:
        raise ValueError(f"outputs of shape {tuple(values.shape)} against {tuple(reference.shape)}")
    largest, masked = 0.0, 0
    sums = torch.zeros(4, dtype=torch.float64, device=reference.device)
    for y, r in zip(values.flatten().split(_PIECE), reference.flatten().split(_PIECE), strict=True):
        y, r = y.double(), r.double()
        d = y - r
        if not torch.isfinite(d).all():
            alike = torch.isinf(r) & (y == r)
            masked += int(alike.sum())
            y, r, d = (each.masked_fill(alike, 0.0) for each in (y, r, d))
        largest = max(largest, float(d.abs().max())) if torch.isfinite(d).all() else math.nan
        sums += torch.stack([d @ d, r @ r, y @ y, y @ r])
        if math.isnan(largest) or masked == values.numel() > 0:
            return Distance(math.nan, math.nan, math.nan, math.nan)
    squared, norm, own, product = sums.tolist()
    return Distance(
        max_error=largest,
        relative_error=math.sqrt(squared / norm) if norm else math.inf if squared else 0.0,
        mse=squared / values.numel(),
        cosine=product / math.sqrt(own * norm) if own * norm else float(own == norm),
    )


def _judge(
    arm: Arm,
    situation: Situation,
    weights: Parameters,
    reference: Outputs,
    name: str,
    put_back: Callable[[], None],
    between: Between,
) -> Numerics:
    plain = _plain(arm, situation, weights)
    varies = "" if arm.model.repeats else _varies(arm, plain, _plain(arm, situation, weights))
    between()
    with arm.entered():
        own = _own(arm, situation, put_back)
    put_back()
    own_shapes, shapes = ([tuple(y.shape) for y in one.all] for one in (own, reference))
    if own_shapes != shapes:
        told = [", ".join(map(str, each)) for each in (own_shapes, shapes)]
        text = f"outputs of shape {told[0]}, and {told[1]} is expected"
        return Numerics(reference=name, ok=False, text=text)
    if varies and all(bool(torch.isfinite(y).all()) for y in own.all):
        return Numerics(reference="", ok=None, text=f"not checked: {varies}")
    place, which = _worst(arm, own, plain, reference)
    own, plain, at = own.at(place), plain.at(place), reference.at(place)
    found = distance(own.values, at.values)
    allowed = distance(plain.values, at.values)
    rounding = _rounding(arm, own.values)
    tolerance = SLACK * allowed.relative_error + rounding
    nudges = _nudges(arm, situation, weights, reference, name, rounding, tolerance, place)
    if arm.quantization:
        tolerance = min(tolerance, _most(arm, rounding))
    promise = plain.promise
    moved = promise is not None and promise.relative_error > 0
    if promise is not None and moved:
        still = _plain(arm, situation, weights, adapted=False).at(place)
        unmoved = distance(still.values, at.values)
        most = SLACK * unmoved.relative_error + rounding + promise.relative_error
        tolerance = min(tolerance, most)
    difference, bound = None, 0.0
    if own.loss is not None and reference.loss is not None and plain.loss is not None:
        difference = own.loss - reference.loss
        bound = _loss_bound(plain, reference)

    def fits() -> bool:  # not what is not finite
        return found.relative_error <= tolerance and abs(difference or 0.0) <= bound

    tied = ""
    if not fits() and math.isfinite(found.relative_error) and not arm.quantization:
        between()
        farther, loss = nudges.reach
        tied = TIED if farther else ""
        tolerance, bound = tolerance + SLACK * farther, bound + SLACK * loss
    ok = fits()
    text = f"relative error {found.relative_error:.2g}{which}, at most {tolerance:.2g} expected"
    text += tied
    if promise is not None and moved:
        text += f" of {promise.text}"
    if difference is not None:
        text += f"; loss off by {difference:+.2g}, at most {bound:.2g} expected"
    right: bool | None = ok
    captured = situation.option("cuda_graphs") != "off"
    course = _curve(arm, situation, name, nudges, between)
    curve = course if isinstance(course, Curve) else None
    if curve is not None:
        right = ok and curve.ok
        text += f"; {curve.text}"
        if captured:
            text += "; all of it by replays of the captured graph, with its optimizer"
    elif course:
        text += f"; loss curve not checked: {course}"
        if captured and ok:  # what replays has been compared with nothing
            right = None
            text = f"not checked: the captured graph and the optimizer in it; outside of it {text}"
    if not math.isfinite(found.relative_error):
        text = "some outputs are not finite"
    return Numerics(
        reference=name,
        ok=right,
        text=text,
        max_error=_finite(found.max_error),
        relative_error=_finite(found.relative_error),
        tolerance=_finite(tolerance),
        mse=_finite(found.mse),
        cosine=_finite(found.cosine),
        loss_difference=None if difference is None else _finite(difference),
        curve_steps=None if curve is None else len(curve.losses),
        curve_difference=None if curve is None else _finite(curve.difference),
    )


def _most(arm: Arm, rounding: float) -> float:
    """The most that the arm's scheme may be off, whatever it is by its definition."""
    named = arm.model.named_modules()
    ran = [m for n, m in named if isinstance(m, QuantizedLinear) and n in arm.probe.ran]
    return SLACK * expected_error(arm.quantization, len(ran)) + rounding * (1 + len(ran)) ** 0.5


def _rounding(arm: Arm, values: torch.Tensor) -> float:
    """One rounding of the output's dtype, or of the weights' if that is coarser."""
    return max(torch.finfo(values.dtype).eps, torch.finfo(arm.weights_dtype).eps)


def _worst(arm: Arm, own: Outputs, plain: Outputs, reference: Outputs) -> tuple[int, str]:
    """Which of several outputs is off by most of what it may be, and words for it."""
    if not own.several:
        return 0, ""

    def share(place: int) -> float:
        found, allowed = (distance(one.all[place], reference.all[place]) for one in (own, plain))
        tolerance = SLACK * allowed.relative_error + _rounding(arm, own.all[place])
        part = found.relative_error / tolerance
        return part if math.isfinite(part) else math.inf

    place = max(range(len(own.several)), key=share)
    return place, f" in output {place + 1} of {len(own.several)}"


def _varies(arm: Arm, one: Outputs, other: Outputs) -> str:
    """Why nothing can be compared, where equal inputs give unequal outputs; else empty."""
    off = max(distance(y, x).relative_error for y, x in zip(one.all, other.all, strict=True))
    loss = abs((one.loss or 0.0) - (other.loss or 0.0))
    most = max(ALIKE, *(_rounding(arm, y) for y in one.all))
    alike = off <= most and loss <= most * abs(one.loss or 0.0)
    if alike or not (math.isfinite(off) and math.isfinite(loss)):
        return ""
    return (
        f"two calls of the plain model on one batch differ by {off:.2g} (relative) in the outputs "
        f"and {loss:.2g} in the loss; it draws random numbers (dropout), or overwrites its inputs"
    )


def _loss_bound(plain: Outputs, reference: Outputs) -> float:
    """How far the loss may be off: as the plain model's, and by the scatter that this one has.

    A loss is a mean, over whose rows errors of the outputs as large as the plain model's scatter.
    """
    assert plain.loss is not None and reference.loss is not None
    scatter = 0.0
    for values, exact in zip(plain.all, reference.all, strict=True):
        rows = values.numel() // (values.shape[-1] if values.ndim else 1)
        scatter = max(scatter, math.sqrt(distance(values, exact).mse / rows))
    off = abs(plain.loss - reference.loss)
    return SLACK * off + loss_curve.SCATTER * scatter + loss_curve.rounding(reference.loss)


def _nudges(
    arm: Arm,
    situation: Situation,
    weights: Parameters,
    reference: Outputs,
    name: str,
    rounding: float,
    aim: float,
    place: int,
) -> Nudges:
    """The reference, nudged by what an arm that is as far off as it may be rounds away."""

    @fp32_products(tf32=False)
    def moved(nudge: Nudge) -> tuple[float, float]:
        with _plain_kernels():
            model = _model(situation, weights, getattr(torch, name), nudge)
            outputs = _outputs(model, situation, arm)
        relative = distance(outputs.all[place], reference.all[place]).relative_error
        return relative, abs((outputs.loss or 0.0) - (reference.loss or 0.0))

    return Nudges(moved, rounding, aim)


def _curve(
    arm: Arm, situation: Situation, name: str, nudges: Nudges, between: Between
) -> Curve | str:
    """The losses over some steps of an arm that trains; or why there are none, or nothing."""
    if not situation.workload.trains:
        return ""
    room = _free_bytes(situation) / 2
    for dtype in dict.fromkeys((getattr(torch, name), torch.float32)):
        if (needed := loss_curve.bytes_needed(arm, dtype)) <= room:
            return loss_curve.check(arm, dtype, between, lambda: nudges.size)
    return (
        f"copies to compare with take {size_text(needed)}, and half of the free memory is "
        f"{size_text(room)}"
    )


@fp32_products(tf32=False)
def _reference(arm: Arm, situation: Situation, weights: Parameters) -> tuple[Outputs, str]:
    """The plain model's outputs in the widest dtype that fits, and that dtype's name."""
    if _fits(arm, situation, weights, torch.float64):
        try:
            outputs = _outputs(_model(situation, weights, torch.float64), situation, arm)
            # An operator may compute in FP32 whatever it is given: say what really came out.
            return outputs, str(outputs.values.dtype).removeprefix("torch.")
        except Exception as error:  # a model of one's own may know FP32 alone
            if is_fatal(error):
                raise
    return _outputs(_model(situation, weights, torch.float32), situation, arm), "float32"


def _plain(arm: Arm, situation: Situation, weights: Parameters, adapted: bool = True) -> Outputs:
    """The plain model in the arm's own precision and flags, and with its choices if ``adapted``."""
    model = _model(situation, weights, None)
    if adapted:
        take_choices(model, arm.model)
    if arm.quantization:
        quantize_linears(model, arm.quantization)
    with contextlib.ExitStack() as stack:
        for flag in arm.flags:
            stack.enter_context(flag())
        with _plain_kernels():
            return _outputs(model, situation, arm, arm.autocast)


def _own(arm: Arm, situation: Situation, put_back: Callable[[], None]) -> Outputs:
    """What the arm itself gives, compiled and captured where its step is; none of it adapts."""
    inputs = arm.batches.inputs
    put_back()
    match situation.workload.name:
        case "train":
            with eager(), torch.no_grad():
                values = arm.autocast(arm.model)(*inputs)
            put_back()
            # With gradients, as in training: without them it would be compiled once more.
            loss = arm.compute(*inputs, *arm.batches.targets)
            forget_graph(loss)
            return Outputs.of(values, float(loss.detach()))
        case "forward":
            return Outputs.of([y.clone() for y in tensors(arm.step())], None)
        case _ if situation.workload.decodes:
            (tokens,) = inputs
            position = torch.full((), tokens.shape[1], dtype=torch.int64, device=tokens.device)
            arm.restart()
            with torch.no_grad():
                found = Outputs(arm.compute(tokens[:, -1:].clone(), position).clone(), None)
            arm.restart()
            return found
        case _:
            with torch.no_grad():
                return Outputs(arm.compute(*inputs).clone(), None)


def _outputs(
    model: Model,
    situation: Situation,
    arm: Arm,
    wrap: Callable[[Compute], Compute] = _unwrapped,
) -> Outputs:
    """What a plain model gives for the batch of the arm's workload, without any cache."""
    dtype = next(model.parameters()).dtype
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in arm.batches.inputs)
    workload = situation.workload
    if workload.decodes:
        (tokens,) = inputs
        inputs = (torch.cat([tokens, tokens[:, -1:]], dim=1),)
    with torch.no_grad():
        carry(model, arm.model)
        values = wrap(model)(*inputs)
        loss = None
        if workload.trains:
            carry(model, arm.model)
            loss = float(wrap(model.loss)(*inputs, *arm.batches.targets))
    if workload.decodes or workload.name == "prefill":
        values = values[:, -1:]
    return Outputs.of(values, loss, None if workload.decodes else model.promise())


@contextlib.contextmanager
def _choices_kept(arm: Arm) -> Iterator[Callable[[], None]]:
    """Gives what puts back the choices that calls have changed; that is done at the end, too."""
    state = arm.model.adapted() | arm.model.carried()
    kept = {name: tensor.clone() for name, tensor in state.items()}

    def put_back() -> None:
        for name, tensor in state.items():
            tensor.copy_(kept[name])

    try:
        yield put_back
    finally:
        put_back()


def _model(
    situation: Situation, weights: Parameters, dtype: torch.dtype | None, nudge: Nudge = ties.NONE
) -> Model:
    """The plain model around these weights, or around copies of them in another dtype."""
    held = {
        name: nudged(tensor.detach().to(dtype), nudge, place)
        if dtype and tensor.is_floating_point()
        else tensor
        for place, (name, tensor) in enumerate(weights.items())
    }
    model: Model = situation.family.share(situation.config, held)
    model.train(situation.workload.trains)
    return model


def _fits(arm: Arm, situation: Situation, weights: Parameters, dtype: torch.dtype) -> bool:
    """Whether weights and outputs in ``dtype`` leave most of the memory free."""
    numbers = sum({id(each): each.numel() for each in weights.values()}.values())
    each = int(getattr(situation.config, "vocabulary", 1))  # outputs of a token
    numbers += sum(x.numel() for x in arm.batches.inputs) * each
    return _ROOM * numbers * dtype.itemsize < _free_bytes(situation)


def _free_bytes(situation: Situation) -> int:
    if situation.on_gpu:
        return int(torch.cuda.mem_get_info(situation.device)[0])
    return int(psutil.virtual_memory().available)


@contextlib.contextmanager
def _plain_kernels() -> Iterator[None]:
    """Every operator in PyTorch that has an implementation there."""
    plain = {name: "torch" for name, op in kernels.OPS.items() if "torch" in op.implementations}
    with kernels.using(**plain):
        yield


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
