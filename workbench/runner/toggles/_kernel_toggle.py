"""The toggles that choose how one operator is computed, or all that have a Triton kernel."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import kernels
from kernels import MEASURED, NOT_TIMED, REQUESTED, STANDARD, Operator, resolve_choice, watched
from kernels.measure.peers import TITLES as LIBRARIES
from workbench.protocol import Blocked
from workbench.runner.toggles import conflict
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    as_default,
    effective,
    never_blocked,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.interfaces import MarkedVariant, StepRecord
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

AUTO = "auto"
FOLLOW = "follow"
TITLES = {
    AUTO: "Fastest, measured",
    "torch": "PyTorch",
    "triton": "Triton",
    "triton_grouped": "Triton with torch's grouped product",
    "triton_small": "Triton, least memory",
    "manual": "S x S matrix",
    "matmul": "Matrix products",
    "subspace": "Subspace iteration",
    "chunked": "PyTorch, in chunks",
    "grouped": "torch grouped product",
    "padded": "Padded blocks",
    "loop": "Loop over experts",
    "dense": "Every expert (dense)",
    **LIBRARIES,
}
_NAMES = TITLES | {AUTO: "automatic choice"}


def kernel_toggle(
    operator: str,
    title: str,
    help: str,
    needs: Callable[[str, Situation], Blocked | None] = never_blocked,
) -> Toggle:
    """Return the toggle of one operator: use the choice for all operators, or its own choice.

    ``needs(option, situation)`` returns why an implementation that can run on this device cannot
    run in a situation.
    """
    options = implementations(operator)
    follows = "triton" in options
    if follows:  # otherwise the first option already measures
        options[AUTO] = TITLES[AUTO]
    name = f"triton_{operator}" if follows else f"kernel_{operator}"

    def blocked(option: str, situation: Situation) -> Blocked | None:
        return (
            not_called(operator, situation)
            or unavailable(operator, option, situation)
            or needs(option, situation)
        )

    def apply(option: str, build: Build) -> None:
        build.choose_kernel(operator, option)

    def evidence(option: str, observed: Observed) -> Finding:
        if not observed.record.usage.get(operator):
            return no_effect(_why_uncalled(operator, observed.situation))
        finding = (
            measured_finding(operator, observed.record)
            if option == AUTO
            else usage_finding(operator, option, observed.record)
        )
        return against_off(finding, operator, observed, name, FOLLOW)

    return Toggle(
        name=name,
        title=title,
        help=help,
        group="Kernels",
        stage=Stage.KERNELS,
        options={FOLLOW: "Shared setting" if follows else "Automatic"} | options,
        apply=apply,
        evidence=evidence,
        blocked=blocked,
        operators=(operator,),
        traits=triton_traits(options),
    )


def triton_traits(options: Collection[str]) -> dict[str, tuple[Trait, ...]]:
    """Return the trait of the options that run a bundled Triton kernel, or may choose one."""
    return {option: (Trait.TRITON,) for option in options if option == AUTO or is_triton(option)}


def is_triton(implementation: str) -> bool:
    """Return True if a bundled Triton kernel computes the implementation, or a part of it."""
    return implementation.startswith("triton")


def chosen_implementation(operator: str, situation: Situation) -> str:
    """Return the implementation that the operator's toggle or the toggle for all operators chooses.

    An empty operator name means an operator without a toggle. If the toggle for all operators
    chooses automatically, this returns PyTorch, because the choice is unknown before a run.
    """
    chosen = situation.option(f"triton_{operator}") if operator else FOLLOW
    if chosen != FOLLOW:
        return chosen
    return "triton" if situation.option("triton") == "on" else "torch"


def is_measured(operator: str, situation: Situation) -> bool:
    """Return True if the operator runs what is fastest, which is unknown before a run."""
    chosen = situation.option(f"triton_{operator}")
    return AUTO in (chosen, situation.option("triton") if chosen == FOLLOW else chosen)


def implementations(operator: str) -> dict[str, str]:
    """Return the titles of an operator's implementations by name, plain PyTorch first."""
    names = sorted(kernels.OPS[operator].implementations, key=lambda name: name != "torch")
    return {name: TITLES.get(name, name) for name in names}


def with_triton() -> tuple[str, ...]:
    """Return the operators that have a Triton kernel."""
    return tuple(name for name, op in kernels.OPS.items() if "triton" in op.implementations)


def unavailable(operator: str, implementation: str, situation: Situation) -> Blocked | None:
    """Return why an implementation of the operator cannot run on this device."""
    if implementation == AUTO:
        return None if situation.on_gpu else NEEDS_GPU
    if implementation in LIBRARIES:
        reason = f"{{title}} cannot trace kernels of {LIBRARIES[implementation]}"
        if why := conflict(situation, Trait.COMPILED, reason):
            return why
    missing = kernels.OPS[operator].unavailable(implementation, situation.device.type)
    if missing is None:
        return None
    if not situation.on_gpu:
        return NEEDS_GPU
    return Blocked(missing, "Run `workbench doctor` to see what to install.")


def _why_uncalled(operator: str, situation: Situation) -> str:
    """Return why no step called the operator: another option computes it, or the model does not."""
    from workbench.runner.toggles import all_toggles

    for toggle in all_toggles().values():
        if operator in toggle.includes and situation.option(toggle.name) != toggle.off:
            title = toggle.title[0].lower() + toggle.title[1:]
            return f"no step called {operator}, which is a part of {title}"
    return f"this model never calls {operator}"


def usage_finding(operator: str, implementation: str, record: StepRecord) -> Finding:
    """Return the finding about an operator's calls and the requested implementation."""
    calls = record.usage.get(operator, {})
    total = sum(calls.values())
    recorded = "the recorded call" if total == 1 else f"all {total} recorded calls"
    if total == 0:
        return no_effect(f"this model never calls {operator}")
    matching_calls = calls.get(implementation, 0)
    shown = ", ".join(f"{name} {count}" for name, count in calls.items())
    _, reason = record.reasons.get(operator, ("", REQUESTED))
    standard = implementation == "torch" and reason.startswith(STANDARD)
    if standard:  # "torch" selects one of several implementations
        matching_calls = total - calls.get("triton", 0)
        text = f"{operator}: {recorded} ran in PyTorch ({shown}; {reason})"
    else:
        text = f"{operator}: {recorded} used {implementation}"
    if matching_calls != total:
        return no_effect(f"{operator}: calls went to {shown}")
    if reason != REQUESTED and not standard:
        return no_effect(f"{text}, but it was chosen automatically")
    return effective(text)


def measured_finding(operator: str, record: StepRecord) -> Finding:
    """Return the finding about the fastest implementation of an operator, with the numbers."""
    calls = record.usage.get(operator, {})
    if not calls:
        return no_effect(f"this model never calls {operator}")
    shown = ", ".join(f"{TITLES.get(name, name)} {count}" for name, count in calls.items())
    _, reason = record.reasons.get(operator, ("", ""))
    text = f"{operator}: chose {shown}; {with_titles(reason, TITLES)}"
    if reason.startswith((MEASURED, NOT_TIMED, kernels.PREFERRED)):
        return effective(text)
    return no_effect(f"{text}, but nothing was measured")


def with_titles(text: str, titles: Mapping[str, str]) -> str:
    """Return a measurement's numbers with titles of implementations instead of their names."""
    if not text.startswith((MEASURED, NOT_TIMED)):
        return text
    names = "|".join(sorted(titles, key=len, reverse=True))
    return re.sub(
        rf"\b({names})\b(?= [\d.]| dropped| is the only)", lambda match: titles[match[1]], text
    )


def against_off(
    finding: Finding, operator: str, observed: Observed, toggle: str, off_option: str
) -> Finding:
    """Return a different finding if the same kernels run with the toggle's ``off_option``."""
    if finding.status != "effective":
        return finding
    from workbench.runner.toggles import _effects as effects

    situation = effects.without(observed.situation, toggle, off_option)
    chosen = effects.kernel_choices(situation).get(operator, "auto")
    if chosen == observed.kernel_choices.get(operator):
        return as_default(f"{finding.text}, the same as without this option")
    auto = observed.kernel_choices.get(operator) == AUTO
    if (auto or chosen in (AUTO, "torch")) and selecting_the_same({operator: chosen}, observed):
        return no_effect(
            f"{finding.text}, the same as {_NAMES.get(chosen, chosen)} here: outputs and operators "
            "are identical with the option off"
        )
    return finding


def selecting_the_same(choices: Mapping[str, str], variant: MarkedVariant) -> set[str]:
    """Return the operators whose calls ran the implementations that ``choices`` would select."""
    from workbench.runner.profiling import instrumented

    same: dict[str, list[bool]] = {}

    def watch(op: Operator, name: str, args: tuple[Any, ...]) -> Any:
        if op.name in choices:
            selected = resolve_choice(op, choices[op.name], args)
            same.setdefault(op.name, []).append(selected == name)
        return op.implementations[name].call(*args)

    has_graphs = variant.situation.has(Trait.COMPILED, Trait.CAPTURED)
    graph_choices = kernels.captured_choices() if has_graphs else contextlib.nullcontext()
    with watched(watch), graph_choices:
        instrumented.call(variant)
    return {operator for operator, calls in same.items() if all(calls)}
