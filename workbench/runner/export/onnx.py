"""Write a family's forward pass as an ONNX file, and check what onnxruntime computes from it.

Run as a program, with a ``Request`` as JSON; the answer is one line of JSON. It is a process of its
own because tracing takes the compiler along. The model is exported for inference, in
FP32, with fixed batch and sequence. Attention that adapts is frozen in the choice that it made.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
import re
import sys
import warnings
from pathlib import Path

import msgspec
import torch

import kernels
from models import FAMILIES, ConfigurationError, Family, Model
from sessions.model import Scalar
from sessions.storage import atomic_write
from workbench.runner.batches import SYNTHETIC, Tensors
from workbench.runner.config.installed_plugins import register_plugins
from workbench.runner.data import make_batches
from workbench.runner.failures import Mistake

NEEDED = ("onnx", "onnxscript", "onnxruntime")
CHECKS = 3  # batches that are compared
SLACK = 4.0  # times the error that torch itself makes in FP32, against FP64
SETTLING = 40  # calls in which a model that adapts chooses
CPU = torch.device("cpu")


class Request(msgspec.Struct, kw_only=True):
    """The model to export, and the file."""

    family: str
    path: str
    preset: str = ""  # the smallest
    model: dict[str, Scalar] = {}
    batch: int = 2
    sequence: int = 16
    seed: int = 0


class Answer(msgspec.Struct, kw_only=True):
    """The written file and its distance from torch; or, if there is none, one sentence."""

    problem: str = ""
    preset: str = ""
    inputs: dict[str, list[int]] = {}
    file_bytes: int = 0
    parameters: int = 0
    opset: int = 0
    largest: float = 0.0  # largest absolute value of torch's outputs
    difference: float = 0.0  # the largest, of onnxruntime's outputs and torch's
    tolerance: float = 0.0


def export(request: Request) -> Answer:
    """Write the file and compare; raises ``Mistake`` or ``ConfigurationError``."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Mistake(
            f"exporting needs {', '.join(missing)}, not installed here; "
            "install the extra: uv sync --extra onnx"
        )
    family = _family(request.family)
    preset = request.preset or next(iter(family.presets))
    config = family.configure(preset, request.model)
    # A model that does not fit in this process's memory is not exported either.
    family.check_memory(
        config,
        workload="forward",
        batch=request.batch,
        sequence=request.sequence,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    model = family.materialise(config, CPU, seed=request.seed).eval()
    batches = make_batches(
        SYNTHETIC,
        family=family,
        config=config,
        batch=request.batch,
        sequence=request.sequence,
        seed=request.seed,
        device=CPU,
        dtype=torch.float32,
    )
    with torch.no_grad(), kernels.using(all="torch", moe_experts="dense"):
        _settle(model, batches.inputs)
        file = Path(request.path)
        # ONNX cannot split spectra, which a causal filter needs: it is exported as its matrix.
        with kernels.using(fourier_mix="matmul"):
            model(*batches.inputs)  # makes the matrix, of numbers; a tracer's would be kept as well
            opset = _write(model, batches.inputs, file)
        answer = Answer(
            preset=preset,
            file_bytes=file.stat().st_size,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            opset=opset,
        )
        drawn = []
        for _ in range(CHECKS):
            batches.advance()
            drawn.append(tuple(x.clone() for x in batches.inputs))
        _compare(model, file, drawn, answer)
    return answer


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise Mistake(f"family: unknown {name!r}; expected one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _settle(model: Model, inputs: Tensors) -> None:
    """Let a model that adapts choose, and then freeze its choice, as in decoding."""
    freeze = getattr(model, "freeze", None)
    if freeze is not None:
        for _ in range(SETTLING):
            model(*inputs)
        freeze()


def _write(model: Model, inputs: Tensors, path: Path) -> int:
    """Export, and return the version of the operator set."""
    from torch.onnx import OnnxExporterError

    from workbench.runner.export._onnx_operators import TRANSLATIONS

    try:
        program = torch.onnx.export(
            model,
            tuple(x.clone() for x in inputs),
            dynamo=True,
            verbose=False,
            custom_translation_table=TRANSLATIONS,
        )
        assert program is not None
        with atomic_write.replacing(path) as temporary:
            program.save(temporary)
    except OnnxExporterError as error:
        raise Mistake(f"{type(model).__name__} cannot be exported: {_why(error)}") from error
    except OSError as error:
        raise Mistake(f"{path} cannot be written: {error.strerror}") from None
    return int(program.model.opset_imports[""])


def _why(error: BaseException) -> str:
    """Return the cause in a sentence: an operator that ONNX lacks, or the error's first line."""
    match = re.search(r"No ONNX function found for <OpOverload\(op='([^']+)'", str(error))
    if match:
        return f"ONNX has no operator for {match[1]}"
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _compare(model: Model, path: Path, drawn: list[Tensors], answer: Answer) -> None:
    """Run the file and the model on every batch, and store the largest difference."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    answer.inputs = {node.name: list(node.shape) for node in session.get_inputs()}
    wide = copy.deepcopy(model).double()
    rounding_error = 0.0
    for inputs in drawn:
        expected = model(*inputs)
        exact = wide(*(x.double() if x.is_floating_point() else x for x in inputs))
        feeds = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        outputs = torch.from_numpy(session.run(None, feeds)[0])
        if outputs.shape != expected.shape or not torch.isfinite(outputs).all():
            answer.problem = (
                f"onnxruntime returns shape {tuple(outputs.shape)}, or numbers that are not "
                f"finite; torch returns shape {tuple(expected.shape)}"
            )
            return
        rounding_error = max(rounding_error, float((expected - exact).abs().max()))
        answer.largest = max(answer.largest, float(expected.abs().max()))
        answer.difference = max(answer.difference, float((outputs - expected).abs().max()))
    answer.tolerance = SLACK * rounding_error + torch.finfo(torch.float32).eps * answer.largest


def main() -> None:
    """Answer the request in the first argument, on standard output; all other output is the log."""
    out = os.dup(1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    register_plugins()
    try:
        answer = export(msgspec.json.decode(sys.argv[1], type=Request))
    except (Mistake, ConfigurationError) as error:
        answer = Answer(problem=str(error))
    os.write(out, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
