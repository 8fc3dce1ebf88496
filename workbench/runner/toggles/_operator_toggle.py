"""The toggles that replace several plain operators by one operator of the library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.protocol import Blocked
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._kernel_toggle import (
    implementations,
    triton_traits,
    unavailable,
    usage_finding,
)
from workbench.runner.toggles._toggle import (
    PARTS,
    Finding,
    Situation,
    Stage,
    Toggle,
    never_blocked,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def operator_toggle(
    name: str,
    operator: str,
    title: str,
    help: str,
    *,
    group: str,
    off: str,
    switch: Callable[[Any], None],
    includes: Collection[str] = (),
    unfused: Collection[str] = (),
    idle: Callable[[Any], str] = lambda model: "",
    presets: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    memory: Callable[[str, Situation], Mapping[str, Any]] | None = None,
    needs: Callable[[str, Situation], Blocked | None] = never_blocked,
) -> Toggle:
    """Return a toggle with "off", titled ``off``, and the implementations except ``unfused``.

    ``switch(model)`` makes a model of the bundled families call the operator. ``idle(model)``
    returns why no step called it; empty if the reason is unknown. ``includes`` and ``memory`` as of
    ``Toggle``, ``needs`` as of ``kernel_toggle``.
    """

    def blocked(option: str, situation: Situation) -> Blocked | None:
        return (
            not_called(operator, situation)
            or unavailable(operator, option, situation)
            or needs(option, situation)
        )

    def apply(option: str, build: Build) -> None:
        build.choose_kernel(operator, option)
        build.transforms.append(switch)

    def evidence(option: str, observed: Observed) -> Finding:
        why = "" if observed.record.usage.get(operator) else idle(observed.model)
        return no_effect(why) if why else usage_finding(operator, option, observed.record)

    options = {"off": off} | implementations(operator)
    return Toggle(
        name=name,
        title=title,
        help=help,
        group=group,
        stage=Stage.KERNELS,
        options={name: shown for name, shown in options.items() if name not in unfused},
        apply=apply,
        evidence=evidence,
        blocked=blocked,
        bundled=PARTS,
        includes=includes,
        traits=triton_traits(options.keys() - unfused),
        presets=presets,
        memory=memory,
    )
