"""Resolution of a configuration: a situation that can be built, or what is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import torch

from sessions.model import Configuration
from workbench import protocol
from workbench.protocol import OR, Availability, Blocked
from workbench.runner.config.availability import (
    blocked_options,
    configured,
    require_unblocked,
    switched,
    usable_choices,
    why_blocked,
    why_unusable,
)
from workbench.runner.config.estimate import check_memory
from workbench.runner.config.values import (
    check_choice,
    check_seed,
    complete_settings,
    default_preset,
    families,
    known,
)
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Situation
from workbench.runner.toggles import all_toggles, traits_by_toggle
from workbench.runner.user_models import user_model
from workbench.runner.wire import Wire
from workbench.runner.workloads import all_workloads


def resolve(configuration: Configuration, device: torch.device) -> Situation:
    """Fill in every default and check every name and value.

    Of options joined by ``protocol.OR`` the first usable one is chosen; ``left_out`` lists
    those passed over. Raises ``Mistake`` or ``models.ConfigurationError`` with one sentence.
    """
    check_seed(configuration.seed)
    family = known("family", configuration.family, families())
    workload = known("workload", configuration.workload, all_workloads())
    if workload.name not in family.workloads:
        raise Mistake(
            f"workload: {family.name} has no workload {workload.name!r}; "
            f"expected one of {', '.join(family.workloads)}"
        )
    preset = configuration.preset or default_preset(family, device)
    base = family.configure(preset, configuration.model)
    toggles = {
        name: toggle.default_option(device) for name, toggle in all_toggles().items()
    } | configuration.toggles
    for name, option in configuration.toggles.items():
        check_choice(configuration, f"toggles.{name}", option)
    preferred = {name: option.split(OR) for name, option in toggles.items() if OR in option}
    toggles |= {name: options[0] for name, options in preferred.items()}
    resolved = msgspec.structs.replace(
        configuration,
        preset=preset,
        model=dataclasses.asdict(base) if family is user_model.FAMILY else configuration.model,
        settings=complete_settings(
            configuration.settings, workload, family.suggested(preset, device.type)
        ),
        toggles=toggles,
    )
    situation = Situation(resolved, device, family, base, workload, base, traits=traits_by_toggle())
    for name in toggles.keys() - configuration.toggles.keys():
        if why_blocked(name, toggles[name], situation):
            toggles[name] = all_toggles()[name].off  # nobody chose the default
    left_out = _settle(preferred, situation)
    situation = dataclasses.replace(situation, config=configured(situation), left_out=left_out)
    check_memory(situation)
    return situation


def _settle(
    preferred: Mapping[str, Sequence[str]], situation: Situation
) -> tuple[protocol.LeftOut, ...]:
    """Choose each toggle's first usable option, or its last if none is usable.

    An option is usable if nothing blocks it and if it blocks no other option that is in use. If two
    options exclude each other, the toggle of the earlier stage takes another. Returns the options
    that are not used.
    """
    toggles = situation.configuration.toggles
    names = [name for name in all_toggles() if name in preferred]
    passed = dict.fromkeys(names, 0)  # options of each toggle that are not usable
    while any(_skip_blocked(name, preferred[name], passed, situation) for name in names):
        pass
    # An option that a later option blocked is usable again if the later one was replaced as well.
    while any(_restore_usable(name, preferred[name], passed, situation) for name in names):
        pass
    left_out: list[protocol.LeftOut] = []
    for name in names:
        for option in preferred[name][: passed[name]]:
            why = _why_unusable(name, option, situation)
            assert why is not None, f"{name}={option} is usable"
            left_out.append(
                protocol.LeftOut(
                    toggle=name, option=option, taken=toggles[name], reason=why.reason, fix=why.fix
                )
            )
    return tuple(left_out)


def _skip_blocked(
    name: str, options: Sequence[str], passed: dict[str, int], situation: Situation
) -> bool:
    """Choose a toggle's next option while the present one is blocked; return True if it changed."""
    before = passed[name]
    while passed[name] < len(options) - 1:
        config = configured(situation)
        option = options[passed[name]]
        if why_blocked(name, option, dataclasses.replace(situation, config=config)) is None:
            break
        passed[name] += 1
        situation.configuration.toggles[name] = options[passed[name]]
    return passed[name] != before


def _restore_usable(
    name: str, options: Sequence[str], passed: dict[str, int], situation: Situation
) -> bool:
    """Choose a toggle's first option that has become usable; return True if there is one."""
    for i, option in enumerate(options[: passed[name]]):
        if _why_unusable(name, option, situation) is None:
            situation.configuration.toggles[name] = option
            passed[name] = i
            return True
    return False


def _why_unusable(name: str, option: str, situation: Situation) -> Blocked | None:
    """Return why an option is blocked, or which option in use it would block."""
    current = dataclasses.replace(situation, config=configured(situation))
    blocked = why_blocked(name, option, switched(current, {name: option}))
    return blocked or why_unusable(name, option, current, usable_choices(current))


def resolve_runnable(configuration: Configuration, device: torch.device) -> Situation:
    """Return the situation of a configuration; raise ``ValueError`` if it cannot run."""
    situation = resolve(configuration, device)
    require_unblocked(situation)
    return situation


def report_left_out(wire: Wire, situations: Iterable[Situation]) -> None:
    """Report, once, every option that was preferred and is not used."""
    for option in dict.fromkeys(
        option for situation in situations for option in situation.left_out
    ):
        toggle = all_toggles()[option.toggle]
        text = (
            f"{toggle.title}: {toggle.options[option.taken]} is used instead of "
            f"{toggle.options[option.option]}, which cannot be used: {option.reason}"
        )
        wire.send(protocol.Note(kind="warning", text=text))


def availability(
    configuration: Configuration, device: torch.device, *, builds: bool = False
) -> Availability:
    """Return the blocked options of a configuration, and the problems that prevent its start.

    ``builds``: build a user's model, whose modules decide on some options. What its file raises is
    raised as ``OwnModelError``.
    """
    model = None
    try:
        situation = resolve(configuration, device)
        if situation.is_own_model:
            user_model.check_source(situation.config)
            if builds:
                model = user_model.fresh(situation.config)
                if situation.workload.trains:
                    model.require_loss()
    except ValueError as error:
        return Availability(configuration=configuration, blocked={}, problems=[str(error)])
    blocked = blocked_options(situation, model)
    try:
        require_unblocked(situation)
        problems = []
    except Mistake as mistake:
        problems = [str(mistake)]
    return Availability(
        configuration=configuration,
        blocked=blocked,
        problems=problems,
        toggles=situation.configuration.toggles,
        left_out=list(situation.left_out),
    )
