"""Report what this machine has, what is missing, and what the missing parts would enable."""

from __future__ import annotations

import argparse
import collections
import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from sessions.numbers import counted
from sessions.sampling import absent
from workbench import calibration, plugins, protocol
from workbench.claims import documents
from workbench.client import runner_command
from workbench.commands._command import DONE, FAILED, Command, answer, answer_json
from workbench.commands._headless import query_runner
from workbench.ui.process import platform_check

# distribution: what it enables, and how to get it
OPTIONAL = {
    "triton": ("the bundled Triton kernels", "uv sync (Linux)"),
    "flash-attn-4": ("attention backend flash4", "uv sync --extra flash (CUDA GPU)"),
    "xformers": ("attention backend xformers", "uv sync --extra xformers (CUDA GPU)"),
}


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    state: str  # "ok", "missing", "skipped" (a plug-in) or "failed"
    text: str


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _run(arguments: argparse.Namespace) -> int:
    reply = query_runner()
    catalogue = reply if isinstance(reply, protocol.Catalogue) else None
    failure = reply if isinstance(reply, protocol.Failure) else None
    checks = [
        _python(),
        *_runner(catalogue, failure),
        _window(),
        _calibration(catalogue),
    ]
    if catalogue is not None:
        checks.append(_compiler(catalogue))
        installed = catalogue.environment  # packages of the runner's host, which may be another one
        checks += [_optional(name, installed, *about) for name, about in OPTIONAL.items()]
    checks += _plugins(catalogue)
    failed = any(check.state == "failed" for check in checks)
    if arguments.json:
        answer_json(
            {
                "reason": "failed" if failed else "done",
                "checks": [asdict(check) for check in checks],
                "environment": catalogue.environment if catalogue else {},
                "operators": catalogue.operators if catalogue else {},
            }
        )
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            answer(f"{check.state:<8} {check.name:<{width}}  {check.text}")
        if catalogue:
            for line in _operators(catalogue.operators):
                answer(line)
    return FAILED if failed else DONE


def _operators(statuses: Mapping[str, str]) -> Iterator[str]:
    """Yield the implementation of each operator, then the reasons why others cannot run."""
    refusals: dict[str, list[str]] = {}
    yield "\noperators on this device:"
    for name, status in statuses.items():
        choice, *reasons = status.splitlines()
        yield f"  {choice.removesuffix(' (requested: auto)')}"
        for reason in reasons:
            refusals.setdefault(reason.strip(), []).append(name)
    if refusals:
        yield "\nnot usable on this device:"
    for reason, names in refusals.items():
        operators = ", ".join(names) if len(names) < 4 else counted(len(names), "operator")
        yield f"  {reason} ({operators})"


def _python() -> Check:
    return Check("Python", "ok", ".".join(map(str, sys.version_info[:3])))


def _runner(catalogue: protocol.Catalogue | None, failure: protocol.Failure | None) -> list[Check]:
    if catalogue is None:
        sentences = (
            (failure.sentence, failure.fix, failure.detail) if failure else ("it gave no reason",)
        )
        text = " ".join(filter(None, sentences))
        return [Check("runner", "failed", text)]
    facts = collections.defaultdict(lambda: "unknown", catalogue.environment)
    families = ", ".join(family.name for family in catalogue.families)
    checks = [
        Check(
            "runner", "ok", f"{_runner_location(facts)}torch {facts['torch']}; families: {families}"
        ),
        Check("toggle sets", "ok", f"{', '.join(preset.name for preset in catalogue.presets)}"),
        Check("CPU", "ok", f"{facts['cpu']}, {_cores(catalogue.environment)}"),
    ]
    if catalogue.device == "cuda":
        driver = facts.get("driver")
        text = f"{facts['gpu']}, CUDA {facts['cuda']}, driver {driver or 'unknown'}"
        checks.append(Check("GPU", "ok", text))
        if driver is None:
            text = (
                "the driver's library does not answer, so utilization, power and clocks are unknown"
            )
            checks.append(Check("NVML", "missing", text))
    else:
        text = "torch finds no CUDA GPU; models run on the CPU with PyTorch kernels"
        checks.append(Check("GPU", "missing", text))
    if lacking := absent(facts):
        checks.append(Check("sensors", "missing", "; ".join(lacking)))
    return checks


def _cores(facts: Mapping[str, str]) -> str:
    """Return the number of cores, which the runner of another version may not report as one."""
    cores = facts.get("cpu_cores", "")
    return counted(int(cores), "core") if cores.isdecimal() else "unknown cores"


def _window() -> Check:
    trouble = platform_check.trouble()
    return Check("window", "missing" if trouble else "ok", trouble or "a window can be opened")


def _runner_location(facts: Mapping[str, str]) -> str:
    """Return the runner's host and Python if a custom command starts it."""
    if not runner_command.is_custom():
        return ""
    command = runner_command.shown(runner_command.command())
    return f"{facts.get('host', 'another host')}, by `{command}`; Python {facts['python']}, "


def _compiler(catalogue: protocol.Catalogue) -> Check:
    if catalogue.device == "cuda":
        name, needed = "C compiler", "Triton needs one to build its launchers: install gcc"
    else:
        name, needed = "C++ compiler", "torch.compile on the CPU needs one: install g++"
    compiler = catalogue.environment.get("compiler")
    return Check(name, "ok", compiler) if compiler else Check(name, "missing", needed)


def _calibration(catalogue: protocol.Catalogue | None) -> Check:
    floors = calibration.load(catalogue) if catalogue else []
    if not floors:
        text = "verdicts do not know the noise of this machine: run workbench calibrate"
        return Check("calibration", "missing", text)
    kinds = ", ".join(sorted({floor.kind for floor in floors if floor.kind}))
    text = calibration.describe(floors[0])
    return Check("calibration", "ok", f"{text}; calibrated: {kinds}" if kinds else text)


def _optional(name: str, installed: Mapping[str, str], enables: str, installation: str) -> Check:
    version = installed.get(name)
    if version is None:
        return Check(name, "missing", f"would enable {enables}: {installation}")
    return Check(name, "ok", f"{version}: {enables}")


def _plugins(catalogue: protocol.Catalogue | None) -> list[Check]:
    """Return one line for each plug-in, of the runner's process and of this one."""
    documents()
    if not platform_check.trouble():  # plots need Qt
        importlib.import_module("workbench.report")
    loaded = [*(catalogue.plugins if catalogue else ()), *plugins.loaded()]
    return [
        Check("plug-in", "skipped" if plugin.problem else "ok", plugin.sentence)
        for plugin in loaded
    ]


COMMAND = Command(name="doctor", help=__doc__, arguments=_arguments, run=_run, drives=True)
