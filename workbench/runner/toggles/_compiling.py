"""The toggles that change how ``torch.compile`` is called; without it they are blocked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from models import Footprint
from workbench.protocol import Blocked, Failure
from workbench.runner.toggles._toggle import (
    Finding,
    Fix,
    Situation,
    Stage,
    Toggle,
    Trait,
    no_effect,
    no_fix,
)
from workbench.runner.variants.compiles import Compiles

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

NOT_COMPILED = Blocked(
    "needs torch.compile, which is off", "Switch torch.compile on.", {"compile": "default"}
)


def compiling_toggle(
    name: str,
    title: str,
    help: str,
    options: Mapping[str, str],
    *,
    apply: Callable[[str, Build], None],
    shown: Callable[[str, Observed, Compiles], Finding],
    blocked: Callable[[str, Situation], Blocked | None],
    traits: Mapping[str, Collection[Trait]] = MappingProxyType({}),
    fixes: Callable[[Failure, Situation, Footprint | None], Iterable[Fix]] = no_fix,
) -> Toggle:
    """Return a toggle; ``blocked`` applies if compilation is on, ``shown`` if it made a graph."""

    def why_not(option: str, situation: Situation) -> Blocked | None:
        if option == next(iter(options)):
            return None
        return blocked(option, situation) if situation.has(Trait.COMPILED) else NOT_COMPILED

    def evidence(option: str, observed: Observed) -> Finding:
        compiles = observed.compiles.read()
        if not compiles.graphs:
            return no_effect("no graph was compiled")
        return shown(option, observed, compiles)

    return Toggle(
        name=name,
        title=title,
        help=help,
        group="Compilation",
        stage=Stage.COMPILE,
        options=options,
        apply=apply,
        evidence=evidence,
        blocked=why_not,
        traits=traits,
        fixes=fixes,
    )
