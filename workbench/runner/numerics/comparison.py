"""The check of a variant's numbers: its outputs on one batch against a more precise reference.

The reference is the plain model of the variant's own weights, every operator in PyTorch, in FP64
where that fits, else in FP32. The tolerance is measured, not typed in: twice the error of the plain
model in the variant's precision, plus one rounding of its dtype. A reference that has only this
precision shows no such error, so the effect of one rounding of every weight is added.

If a variant is quantized, that plain model is quantized too, by the operator's definition. So the
tolerance is twice the scheme's own error. Since a scheme might ruin a model, that error is bounded:
at most ``SLACK`` times the sum of independent roundings, one for each layer, but never less than
the rounding of the plain model. A tolerance above ``USEFUL`` would accept zeros: then the numbers
are not checked. In 16 bits, separate checks look for faults of single layers, in FP32
(``structure_check``) and in the outputs (``layer_errors``).

A model that chooses (experts, tokens) may choose differently if two candidates are within a
rounding of each other. A variant that is too far off is wrong only if ``routing_ties`` finds no
such ties that explain it.

A model may draw random numbers. If it draws them in training mode only, everything is
compared in evaluation mode, including losses and weights over training steps, and the text says so.
If two calls of the plain model, with another batch between them, differ nevertheless, it is not
checked. Every copy continues from the state that steps have left in it (``carried``), and takes
constants from a fresh build. Everything is restored afterwards (``undisturbed``).

If the check itself fails, the result is "not checked", never "wrong".

A model that adapts is checked in its present state, which the check does not change. The plain
model in the variant's precision makes the same choices, and the reference makes none. So the
tolerance is twice the effect of the choices by their definition, and at most the model's promise.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable

import torch

from sessions.model import Numerics
from sessions.sizes import size_text
from workbench.runner.failures import Cancelled, explain, is_fatal, lacks_memory
from workbench.runner.instruments.memory import free_bytes
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.model_state.carried_state import NotCarried, Remembered
from workbench.runner.model_state.run_state import NotRecordable
from workbench.runner.numerics import forward, layer_errors, structure_check, training_curve
from workbench.runner.numerics.deviation import (
    Deviation,
    find_deviation,
    is_ruined,
    other_shapes,
)
from workbench.runner.numerics.isolation import undisturbed
from workbench.runner.numerics.layer_errors import LayerError
from workbench.runner.numerics.reference import Outputs, Plain
from workbench.runner.numerics.repeatability import CheckMode, choose_mode
from workbench.runner.numerics.routing_ties import Nudges
from workbench.runner.numerics.shared_reference import SharedReference, StoredResults, results_for
from workbench.runner.numerics.structure_check import StructureError
from workbench.runner.numerics.training_curve import Between, Curve, go_on
from workbench.runner.structures import map_tensors
from workbench.runner.training.trainer import forget_graph, overlapping
from workbench.runner.user_models.build_differences import difference_of_builds
from workbench.runner.variants.variant import Variant

REPEATS = "repeats"  # stored if equal calls of the plain model give equal outputs
CURVE_ROOM = 2  # times the memory of the models that train must be free: activations need some


class PutOff(Exception):  # noqa: N818 - a request, not an error
    """A check was abandoned for something more urgent, without a result."""


def bytes_wanted(variant: Variant) -> int:
    """Return how many bytes of a GPU should be free for all parts of a check.

    0 if the check has no training steps, or if the GPU is too small for them.
    """
    device = variant.situation.device
    if device.type != "cuda" or not variant.situation.workload.trains:
        return 0
    total = torch.cuda.mem_get_info(device)[1]
    weights, dtype = variant.plain_weights(), variant.weights_dtype
    wanted = (
        CURVE_ROOM * training_curve.bytes_needed(weights, dtype, reference)
        for reference in (torch.float64, torch.float32)
    )
    return next((count for count in wanted if count < total), 0)


def check(
    variant: Variant,
    situation: Situation,
    between: Between = go_on,
    shared: SharedReference | None = None,
) -> Numerics:
    """Compare the variant with its reference, outside of all timing; raises only fatal errors.

    If the check fails, lacks memory or has no reference, the result is "not checked". ``between``
    is called between its parts and may end it by raising ``PutOff`` or ``Cancelled``; even then
    the variant is restored. With ``shared`` results, only missing parts are computed; the
    weights and moments are then those of the first check, and they stay.
    """
    numerics = _check(variant, situation, between, shared)
    if numerics.ok is True or not situation.is_own_model:
        return numerics
    why = difference_of_builds(situation.config)
    return _not_checked(why) if why else numerics


def _check(
    variant: Variant, situation: Situation, between: Between, shared: SharedReference | None
) -> Numerics:
    try:
        with (
            variant.restored_round(),
            contextlib.nullcontext() if shared is None else shared.begun(variant) as results,
            undisturbed(variant) as put_back,
            contextlib.ExitStack() as modes,
        ):
            if why := _unclear(variant.remembered, variant.weights_dtype):
                return _not_checked(why)
            plain = Plain(variant, situation, variant.plain_weights())
            reference, name = plain.reference()
            put_back()
            between()
            stored = results_for(variant, results)
            repeats = (variant.model.repeats or stored.has(REPEATS)) and not reference.drew
            mode = CheckMode() if repeats else choose_mode(plain, modes, put_back)
            if mode.words:
                reference, name = plain.reference()
                put_back()
            if mode.words or mode.varies:
                stored.drop()
            stored.get(REPEATS, lambda: True)
            between()
            return _judge(plain, reference, name, mode, put_back, between, stored)
    except (PutOff, Cancelled):
        raise
    except (NotRecordable, NotCarried) as reason:
        text = f"state outside buffers: {reason}"
    except BaseException as error:
        if is_fatal(error):
            raise
        text = explain(error).sentence
    gc.collect()
    return _not_checked(text)


def _not_checked(why: str) -> Numerics:
    return Numerics(reference="", ok=None, text=f"not checked: {why}")


def _unclear(remembered: Remembered | None, weights_dtype: torch.dtype) -> str:
    """Return why state cannot be separated from constants, as a clause; empty if it can."""
    if remembered is None or not (names := remembered.carried.unclear):
        return ""
    dtype = str(weights_dtype).removeprefix("torch.")
    return (
        f"{dtype} rounded the initial values of {', '.join(names)}, and steps changed them: the "
        "two changes cannot be separated"
    )


def _judge(
    model: Plain,
    reference: Outputs,
    name: str,
    mode: CheckMode,
    put_back: Callable[[], None],
    between: Between,
    stored: StoredResults,
) -> Numerics:
    """Compare the variant's outputs, layers and training curve with the reference called ``name``.

    ``model`` is the plain model in the variant's precision; ``mode`` says how both are run.
    """
    variant, situation = model.variant, model.situation
    plain = mode.outputs or model.outputs()
    put_back()
    between()
    with variant.entered():
        actual = _variant_outputs(variant, situation, put_back)
    put_back()
    if mismatch := other_shapes(actual, reference):
        return Numerics(reference=name, ok=False, text=f"{mode.words}{mismatch}")
    if mode.varies and not is_ruined(actual, reference):
        return Numerics(reference="", ok=None, text=f"not checked: {mode.varies}")
    outcome, nudges = find_deviation(model, name, actual, plain, reference)
    finite = math.isfinite(outcome.distance.relative_error)
    if outcome.fits and outcome.tolerance > layer_errors.COARSE:
        between()
        _look_at_layers(outcome, model, (actual, plain, reference), put_back, stored)
    if not outcome.fits and finite and not variant.quantization:
        between()
        outcome.widen(nudges)
    curve = _curve(variant, situation, reference, name, nudges, between, stored)
    text = f"{mode.words}{outcome.text()}"
    right: bool | None = False
    if outcome.means_nothing:
        right, text = None, f"not checked: the tolerance would accept wrong outputs: {text}"
    elif outcome.hides_layers:
        right, text = None, f"not checked: no check can detect a wrong layer here: {text}"
    elif finite:
        captured = situation.has(Trait.CAPTURED)
        right, text = _with_curve(text, outcome.fits, curve, captured)
    return _numerics(name, right, text, outcome, curve if isinstance(curve, Curve) else None)


def _numerics(
    reference: str, right: bool | None, text: str, outcome: Deviation, curve: Curve | None
) -> Numerics:
    """Return the result with the numbers of a deviation and a training curve."""
    difference, errors = outcome.difference, outcome.distance
    return Numerics(
        reference=reference,
        ok=right,
        text=text,
        max_error=_finite(errors.max_error),
        relative_error=_finite(errors.relative_error),
        tolerance=_finite(outcome.tolerance),
        mse=_finite(errors.mse),
        cosine=_finite(errors.cosine),
        loss_difference=None if difference is None else _finite(difference),
        curve_steps=None if curve is None else len(curve.losses),
        curve_difference=None if curve is None else _finite(curve.difference),
        curve_allowed=None if curve is None else _finite(curve.allowed),
    )


def _look_at_layers(
    outcome: Deviation,
    model: Plain,
    outputs: tuple[Outputs, Outputs, Outputs],
    put_back: Callable[[], None],
    stored: StoredResults,
) -> None:
    """Look for errors of single layers, which a 16-bit tolerance hides; record skipped checks.

    ``outputs``: the variant's, the plain model's and the reference's.
    """
    structure = structure_check.find(model, put_back)
    if isinstance(structure, StructureError):
        outcome.layer = structure
        return
    layer = layer_errors.find(model, *outputs, outcome.output_index, stored)
    put_back()
    outcome.layer = layer if isinstance(layer, LayerError) else None
    checks = (("modules in FP32", structure), ("scales of single layers", layer))
    outcome.skipped = tuple(
        f"{name} not checked: {why}" for name, why in checks if isinstance(why, str)
    )


def _with_curve(
    text: str, fits: bool, curve: Curve | str, captured: bool
) -> tuple[bool | None, str]:
    """Return the verdict (True: right, False: wrong, None: unknown), and the text of the result.

    ``text`` and ``fits`` describe the outputs. ``curve``: the comparison of some training steps,
    or why there is none; empty in inference. ``captured``: the steps replay a CUDA graph.
    """
    if isinstance(curve, Curve):
        text += f"; {curve.text}"
        if captured:
            text += "; all steps replayed the captured graph, with its optimizer"
        if fits and curve.ok and curve.updates.unclear:
            return None, f"not checked: {curve.updates.unclear}; {text}"
        return fits and curve.ok, text
    if curve:
        text += f"; loss curve not checked: {curve}"
        if captured and fits:  # no replay has been compared
            graph = "not checked: the captured graph and the optimizer in it"
            return None, f"{graph}; without the graph: {text}"
    return fits, text


def _curve(
    variant: Variant,
    situation: Situation,
    outputs: Outputs,
    name: str,
    nudges: Nudges,
    between: Between,
    stored: StoredResults,
) -> Curve | str:
    """Return the losses over some training steps, or why there are none; empty in inference."""
    if not situation.workload.trains:
        return ""
    if situation.has(Trait.CAPTURED) and not variant.model.training:
        return "the captured graph computes in training mode, and the check in evaluation mode"
    if names := overlapping(variant.plain_weights()):
        return f"{names} share memory, so each step moves both twice"
    room, why = free_bytes(situation.device) / CURVE_ROOM, ""
    for dtype in dict.fromkeys((getattr(torch, name), torch.float32)):
        needed = training_curve.bytes_needed(variant.plain_weights(), variant.weights_dtype, dtype)
        if needed > room:
            copies, free = size_text(needed), size_text(room)
            why = f"the reference needs {copies}, but half of the free memory is only {free}"
            continue
        try:
            return training_curve.check(
                variant, dtype, between, lambda: nudges.size, outputs.largest, stored
            )
        except Exception as error:
            if not lacks_memory(error):
                raise
            why = explain(error).sentence
        gc.collect()  # frees the tensors that the failed check held
    return why


def _variant_outputs(
    variant: Variant, situation: Situation, put_back: Callable[[], None]
) -> Outputs:
    """Return the variant's own outputs, compiled and captured if its step is, without adapting."""
    inputs = variant.batches.inputs
    put_back()
    match situation.workload.name:
        case "train":
            values = forward.outputs(variant)
            put_back()
            # With gradients, as in training: without them it would be compiled once more.
            loss = forward.loss(variant)
            forget_graph(loss)
            return Outputs.of(values, float(loss.detach()))
        case "forward":
            return Outputs.of(map_tensors(variant.step(), torch.clone), None)
        case _ if situation.workload.decodes:
            (tokens,) = inputs
            position = torch.full((), tokens.shape[1], dtype=torch.int64, device=tokens.device)
            variant.restart()
            with torch.no_grad():
                result = Outputs(variant.compute(tokens[:, -1:].clone(), position).clone(), None)
            variant.restart()
            return result
        case _:
            with torch.no_grad():
                return Outputs(variant.compute(*inputs).clone(), None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
