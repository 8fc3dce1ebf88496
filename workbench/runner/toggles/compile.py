"""``torch.compile``: Dynamo traces the model, and Inductor generates fused kernels for it.

``reduce-overhead`` and ``max-autotune`` also replay CUDA graphs. Compilation takes seconds to
minutes; the timeline shows it as a separate phase. Helps most with many small operators in
sequence, and least if matrix products take most of the time. On an H200, HYDRA base training (8 x
1,024 tokens, AMP BF16): *default* takes 0.55 of the eager step time and 0.61 of its peak memory;
*max-autotune* takes 0.51 of the time, after 214 s of tuning.
"""

from __future__ import annotations

import functools
import shutil
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kernels import own_code
from models import Footprint
from models.language_model import ENTRIES
from workbench.protocol import Blocked, Failure
from workbench.runner.failures import Mistake
from workbench.runner.foreign.patches import function_of
from workbench.runner.profiling import provenance
from workbench.runner.profiling.probes import recordings
from workbench.runner.structures import listed_modules
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Alternative,
    Finding,
    Fix,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)
from workbench.runner.variants.compiles import keep_records

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed
    from workbench.runner.workloads import Compute

WITH_GRAPHS = ("reduce-overhead", "max-autotune")
LAUNCHED = (
    "the host launches each kernel, and short kernels wait for their launch"  # without CUDA graphs
)


NEEDS_COMPILER = Blocked("Inductor needs a C++ compiler on the CPU, but finds none", "Install g++.")


def has_compiler(situation: Situation) -> bool:
    """Return True if Inductor can compile here: on the CPU it writes C++."""
    return situation.on_gpu or _finds_compiler()


@functools.cache
def _finds_compiler() -> bool:
    return any(map(shutil.which, ("g++", "clang++", "c++")))


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if option in WITH_GRAPHS and not situation.on_gpu:
        return NEEDS_GPU
    return None if has_compiler(situation) else NEEDS_COMPILER


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    mode = situation.option(TOGGLE.name)
    if failure.kind == "compile":
        traced = "torch._dynamo.exc." in failure.detail  # then other modes would fail too
        if mode not in ("off", "default") and not traced:
            yield Fix(10, {TOGGLE.name: "default"}, "fewer compiler passes, but slower steps")
        yield Fix(30, {TOGGLE.name: "off"}, "the model runs in eager mode, which is slower")
    elif failure.kind == "capture" and mode in WITH_GRAPHS:
        choices = TOGGLE.alternative(mode, Trait.REPLAYED).choices
        yield Fix(20, choices, LAUNCHED)


def _apply(option: str, build: Build) -> None:
    keep_records()
    provenance.keep()
    build.phases.watch_compiles()
    build.compile_options["mode"] = option

    def compiled(compute: Compute) -> Compute:
        arguments = _arguments(build)
        if not build.compiles_blocks:
            return torch.compile(own_code(compute), **arguments)
        assert build.model is not None
        _compile_blocks(build.model, arguments)
        return compute

    build.compute_wrappers.append(compiled)


def _arguments(build: Build) -> dict[str, Any]:
    """Return the arguments of ``torch.compile``, which takes a mode or the options of a mode."""
    arguments = dict(build.compile_options)
    if "options" in arguments:
        from torch._inductor import list_mode_options

        mode_options = list_mode_options(arguments.pop("mode"))
        arguments["options"] = {**mode_options, **arguments["options"]}
    return arguments


def _compile_blocks(model: nn.Module, options: Mapping[str, Any]) -> None:
    """Compile the model's repeated blocks in place, and its loss if it names a method for it."""
    compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
    for block in repeated_blocks(model):
        for name in ENTRIES:
            method = function_of(block, name)
            if method is None and callable(bound := getattr(block, name, None)):
                setattr(block, name, torch.compile(own_code(bound), **options))
            if method is None:
                continue
            if method not in compiled:  # blocks of the same kind share the compiled code
                compiled[method] = torch.compile(own_code(method), **options)
            setattr(block, name, types.MethodType(compiled[method], block))
    for name in beside_blocks(model):
        method = torch.compile(own_code(getattr(type(model), name)), **options)
        setattr(model, name, types.MethodType(method, model))


def beside_blocks(model: nn.Module) -> Mapping[str, tuple[str, ...]]:
    """Return the model's methods that are compiled beside blocks, and modules that they call."""
    methods: Mapping[str, tuple[str, ...]] = getattr(model, "compiled_beside_blocks", {})
    return methods


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the entries of the model's outermost lists of modules; raise ``Mistake`` for none."""
    blocks = list(listed_modules(model))
    if not blocks:
        raise Mistake(
            f"compile_scope: {type(model).__name__} has no nn.ModuleList whose entries could be "
            "compiled separately; choose the whole model"
        )
    return blocks


def _gave_up(observed: Observed) -> bool:
    return bool(observed.compiles.read().given_up)


def _evidence(option: str, observed: Observed) -> Finding:
    compiles = observed.compiles.read()
    if option == "off":
        return no_effect(
            "the model compiles itself, but gave up and continued in eager mode, because all "
            f"configurations share its recompile limit: {compiles.given_up[0]}"
        )
    if not compiles.graphs:
        return no_effect("no graph was compiled: the model ran in eager mode")
    text = compiles.text()
    if compiles.given_up:
        return no_effect(f"{text}; gave up and continued in eager mode: {compiles.given_up[0]}")
    if option in WITH_GRAPHS:
        text += f"; {compiles.graphs_text()}"
        if not compiles.recordings:
            return no_effect(text)
        if not recordings.replays():
            return no_effect(f"{text}; the last step replayed none of them")
        text += ", replayed in the last step"
    return effective(text)


_UNTUNED = Alternative("Compile without autotuning.", {"compile": "default"})

TOGGLE = Toggle(
    name="compile",
    title="torch.compile",
    help=__doc__,
    group="Compilation",
    stage=Stage.COMPILE,
    options={
        "off": "Off",
        "default": "default",
        "reduce-overhead": "reduce-overhead",
        "max-autotune": "max-autotune",
        "max-autotune-no-cudagraphs": "max-autotune, no CUDA graphs",
    },
    apply=_apply,
    evidence=_evidence,
    chooses=_gave_up,
    blocked=_blocked,
    traits={
        "default": (Trait.COMPILED,),
        "reduce-overhead": (Trait.COMPILED, Trait.REPLAYED),
        "max-autotune": (Trait.COMPILED, Trait.REPLAYED, Trait.AUTOTUNED),
        "max-autotune-no-cudagraphs": (Trait.COMPILED, Trait.AUTOTUNED),
    },
    alternatives={
        "reduce-overhead": (Alternative("Compile without CUDA graphs.", {"compile": "default"}),),
        "max-autotune": (
            Alternative("Compile without CUDA graphs.", {"compile": "max-autotune-no-cudagraphs"}),
            _UNTUNED,
        ),
        "max-autotune-no-cudagraphs": (_UNTUNED,),
    },
    presets={
        "production-inference": ("max-autotune", "max-autotune-no-cudagraphs"),
        "low-memory": ("default",),
        "throughput": ("default",),
    },
    memory=lambda option, situation: {"compiled": option != "off"},
    unpredictable="what torch.compile fuses is unknown before it has compiled",
    known_classes={  # operators that Inductor calls and does not fuse
        "matrix product": (
            "matrix product",
            "moe_experts",
            "linear_cross_entropy",
            "low_rank",
            "graph_diffusion",
        ),
        "attention": ("attention",),
        "scan": ("ssd_scan",),
        "optimizer": ("optimizer",),
    },
    fixes=_fixes,
    causes_of_slowness="The usual causes are graph breaks, recompiles for changing shapes, and "
    "operators that a hand-written kernel already computes well; the evidence and the checklist "
    "name the lines.",
)
