"""The toggles that replace modules of a user's model by one operator of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from models import Model
from workbench.protocol import Blocked
from workbench.runner.foreign.patches import Patch
from workbench.runner.toggles._kernel_toggle import with_triton
from workbench.runner.toggles._toggle import (
    Finding,
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

_OWN = Blocked(
    "works only with your own model or one of Hugging Face; the bundled families call the "
    "operator already",
    "Choose your own model.",
    absent=True,
)


def patch_toggle(
    name: str,
    operator: str,
    title: str,
    help: str,
    patch: Callable[[nn.Module], Patch],
    *,
    modules: str,
    needs_training: bool = False,
) -> Toggle:
    """Return the toggle that replaces the modules that ``patch`` recognizes by an operator.

    The operator's own toggle, or that for all operators, chooses the implementation; otherwise the
    choice is automatic.
    ``modules`` names the replaced modules in the plural.
    """

    def blocked(option: str, situation: Situation) -> Blocked | None:
        if not _is_own(situation):
            return _OWN
        if needs_training and not situation.workload.trains:
            return Blocked(
                "needs a loss, which this workload does not compute",
                "Choose the training step.",
                {"workload": "train"},
            )
        return None

    def apply(option: str, build: Build) -> None:
        build.choose_kernel(operator, "auto", Precedence.REPLACED)

        def transform(model: Model) -> None:
            model.patches[name] = patch(model)

        build.transforms.append(transform)

    def evidence(option: str, observed: Observed) -> Finding:
        applied: Patch | None = observed.model.patches.get(name)
        if applied is None or not applied.sites:
            return no_effect(f"no {modules} were recognized in this model, so nothing was replaced")
        calls = observed.record.usage.get(operator, {})
        if not calls:
            return no_effect(f"replaced {applied.summary()}, but no step calls {operator}")
        shown = ", ".join(f"{count} by {name}" for name, count in calls.items())
        return effective(f"replaced {applied.summary()}; calls of {operator}: {shown}")

    def has_modules(option: str, model: Model) -> bool:
        trial = patch(model)
        count = len(trial.sites)
        trial.undo()
        return count > 0

    return Toggle(
        name=name,
        title=title,
        help=help,
        group="Your model",
        stage=Stage.KERNELS,
        options={"off": "Model's own", "on": "Bundled operator"},
        apply=apply,
        evidence=evidence,
        blocked=blocked,
        brings=operator,
        has_modules=has_modules,
        # The automatic choice may be a Triton kernel.
        traits={"on": (Trait.TRITON,)} if operator in with_triton() else {},
    )


def brought(situation: Situation) -> set[str]:
    """Return the operators that toggles bring into a user's model in this situation."""
    from workbench.runner.toggles import all_toggles  # avoids an import cycle

    return {
        toggle.brings
        for toggle in all_toggles().values()
        if toggle.brings and situation.option(toggle.name) != toggle.off
    }


def _is_own(situation: Situation) -> bool:
    from workbench.runner.user_models import user_model

    return situation.family is user_model.FAMILY
