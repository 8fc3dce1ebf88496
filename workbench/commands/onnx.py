"""Write a family's forward pass as an ONNX file, checked by onnxruntime against torch."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sessions.storage import atomic_write
from workbench import interrupts
from workbench.commands._arguments import integer, whole_number
from workbench.commands._command import (
    DONE,
    FAILED,
    Command,
    Failed,
    Mistaken,
    answer,
    answer_json,
    check_output,
)

PROGRAM = "workbench.runner.export.onnx"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("family", help="model family; `workbench doctor` lists them")
    parser.add_argument("--preset", default="", help="default: the smallest")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of the model, or batch or sequence, which are fixed in the file",
    )
    parser.add_argument(
        "--seed", type=integer, default=0, help="seed of weights and inputs; default: 0"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.onnx")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    check_output(arguments.output, (".onnx",))
    result = _export(_request(arguments))
    if result["problem"] and not result["file_bytes"]:
        raise Mistaken(result["problem"])
    result["file"] = str(arguments.output)
    result["ok"] = not result["problem"] and result["difference"] <= result["tolerance"]
    if arguments.json:
        answer_json({"reason": "done", **result})
    else:
        answer(_text(result))
    return DONE if result["ok"] else FAILED


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    request: dict[str, Any] = {
        "family": arguments.family,
        "path": str(arguments.output.absolute()),
        "preset": arguments.preset,
        "seed": arguments.seed,
        "model": {},
    }
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise Mistaken(f"--set {text}: expected FIELD=VALUE")
        if name in ("batch", "sequence"):
            if (number := whole_number(value)) is None:
                raise Mistaken(f"--set {text}: expected a whole number")
            request[name] = number
        else:
            request["model"][name] = value
    return request


def _export(request: dict[str, Any]) -> dict[str, Any]:
    """Return the exporting process's result; raise ``Failed`` with its last line if it dies."""
    completed = _run_program(request)
    try:
        result: dict[str, Any] = json.loads(completed.stdout)
    except ValueError:
        words = completed.stderr.strip().splitlines()[-1:] or ["no message"]
        raise Failed(
            f"the export ended with exit code {completed.returncode}: {words[0]}"
        ) from None
    return result


def _run_program(request: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the exporting process to its end; it and its unfinished file go with this process."""
    command = [sys.executable, "-P", "-m", PROGRAM, json.dumps(request)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace") as child:
        interrupts.at_exit(functools.partial(_discard, child.pid, Path(request["path"])))
        try:
            output, log = child.communicate()
        except BaseException:
            child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, output, log)


def _discard(pid: int, output: Path) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        os.waitpid(pid, 0)  # its unfinished file is locked as long as it lives
    atomic_write.remove_leftovers(output)


def _text(result: dict[str, Any]) -> str:
    inputs = ", ".join(f"{name} {tuple(shape)}" for name, shape in result["inputs"].items())
    lines = [
        f"wrote {result['file']}: preset {result['preset']}, {result['parameters']:,} parameters, "
        f"{result['file_bytes'] / 1e6:.1f} MB, operator set {result['opset']}, inputs {inputs}"
    ]
    if result["problem"]:
        return "\n".join([*lines, f"WRONG: {result['problem']}"])
    verdict = "right" if result["ok"] else "WRONG"
    lines.append(
        f"{verdict}: onnxruntime and torch differ by at most {result['difference']:.2g} in outputs "
        f"of up to {result['largest']:.2g}; the limit is {result['tolerance']:.2g}: four times "
        "torch's own FP32 error, plus rounding"
    )
    return "\n".join(lines)


COMMAND = Command(name="onnx", help=__doc__, arguments=_arguments, run=_run)
