"""Which options failed when a configuration could not be built, compiled, captured or stepped."""

from __future__ import annotations

from models.execution.cuda_graph import CaptureError
from sessions.model import Configuration, Evidence
from workbench.runner.failures import explain, is_of_compiler, is_of_triton
from workbench.runner.interfaces import Trait
from workbench.runner.toggles import all_toggles


def failed_options(
    error: BaseException, failed: Configuration, before: Configuration | None = None
) -> list[Evidence]:
    """Return the options that failed with ``error``; ``before`` still worked.

    These are the changed options that the error names, or all that changed if it names none. With
    nothing to go back to, only options that the error names: anything may be short of memory.
    """
    changed = {
        name: option
        for name, option in failed.toggles.items()
        if name in all_toggles()
        and option != (all_toggles()[name].off if before is None else before.toggles.get(name))
    }
    trait = _trait_of(error)
    named = {
        name: option
        for name, option in changed.items()
        if trait in all_toggles()[name].traits.get(option, ())
    }
    blamed = named or ({} if before is None else changed)
    why = explain(error).sentence
    return [Evidence(name, option, "failed", why) for name, option in blamed.items()]


def _trait_of(error: BaseException) -> Trait | None:
    """Return the trait of the options that an error names, if it names any."""
    if isinstance(error, CaptureError):
        return Trait.CAPTURED
    if is_of_compiler(error):
        return Trait.COMPILED
    return Trait.TRITON if is_of_triton(error) else None
