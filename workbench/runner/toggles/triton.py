"""Use the bundled Triton kernel for every operator whose own toggle is at *Shared setting*.

*Fastest, measured* times every implementation of each operator on this GPU instead, including
kernels of installed libraries, once for each class of shapes. With torch.compile it leaves norms,
rotary embedding and most gates to Inductor, which fuses them with their neighbours. It leaves the
gradient of gates in one packed tensor to Triton: 42 us instead of 70 for HYDRA base.

On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16) takes 0.71 of the eager step time with
all kernels. They help mainly without compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

import kernels
from models import Footprint
from workbench.protocol import Blocked, Failure
from workbench.runner.toggles._kernel_toggle import (
    AUTO,
    TITLES,
    measured_finding,
    selecting_the_same,
    unavailable,
    usage_finding,
    with_triton,
)
from workbench.runner.toggles._toggle import (
    Finding,
    Fix,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)
from workbench.runner.variants.build import Precedence

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def _operators() -> tuple[str, ...]:
    # Attention has its own toggle, which lists its backends.
    return tuple(name for name in with_triton() if name != "attention")


def _blocked(option: str, situation: Situation) -> Blocked | None:
    return unavailable("rms_norm", "triton", situation) if option != "off" else None


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    meaning = "the operators run in PyTorch"
    if failure.kind == "compile":
        yield Fix(40, {TOGGLE.name: TOGGLE.off}, meaning)
    elif failure.kind == "nan":
        shown = f"{meaning}, which shows whether a kernel is wrong"
        yield Fix(20, {TOGGLE.name: TOGGLE.off}, shown)


def _apply(option: str, build: Build) -> None:
    for operator in _operators():
        implementation = AUTO if option == AUTO else "triton"
        build.choose_kernel(operator, implementation, Precedence.ALL_OPERATORS)


def _evidence(option: str, observed: Observed) -> Finding:
    from workbench.runner.toggles import _effects as effects

    choice = AUTO if option == AUTO else "triton"
    situation = effects.without(observed.situation, TOGGLE.name, TOGGLE.off)
    choices_without = effects.kernel_choices(situation)
    followers = [  # operators whose own toggle chooses the same do not count
        name
        for name in _operators()
        if observed.record.usage.get(name)
        and observed.kernel_choices.get(name) == choice != choices_without.get(name)
    ]
    if option == AUTO:
        findings = {name: measured_finding(name, observed.record) for name in followers}
        text = "; ".join(finding.text for finding in findings.values())
        measured = {name for name in followers if findings[name].status == "effective"}
        if not measured:
            return no_effect(text or "no operator uses this setting")
        off_choices = {name: choices_without[name] for name in measured}
        if measured <= selecting_the_same(off_choices, observed):
            return no_effect(f"{text}; all of them run the same with this setting off")
        return effective(text)
    ran = [usage_finding(name, "triton", observed.record) for name in followers]
    failed = [finding.text for finding in ran if finding.status != "effective"]
    if failed or not ran:
        return no_effect("; ".join(failed) or "no operator of this model uses this setting")
    return effective(f"Triton ran for {', '.join(followers)}")


def _default(device: torch.device) -> str:
    return "on" if kernels.OPS["rms_norm"].unavailable("triton", device.type) is None else "off"


TOGGLE = Toggle(
    name="triton",
    title="Triton kernels, all",
    help=__doc__,
    group="Kernels",
    stage=Stage.KERNELS,
    options={"off": "Off", "on": "On", AUTO: TITLES[AUTO]},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    operators=_operators(),
    default=_default,
    traits={"on": (Trait.TRITON,), AUTO: (Trait.TRITON,)},
    presets={"latency": ("on",), "throughput": (AUTO,)},
    fixes=_fixes,
)
