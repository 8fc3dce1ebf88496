"""Resolution of a configuration: a situation that can be built, or what is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import torch

import models
from kernels import hardware
from sessions.model import Configuration, Scalar
from workbench import protocol
from workbench.protocol import MOST_PAIRING_SHARE, OR, Availability, Blocked, Field, Start
from workbench.protocol.catalogue import expected
from workbench.runner.config import user_model
from workbench.runner.failures import Mistake
from workbench.runner.toggles import Situation, Toggle, all_toggles
from workbench.runner.toggles._ranks import batch_ranks_of, layout_of
from workbench.runner.toggles.compile import WITH_GRAPHS
from workbench.runner.toggles.context_parallel import context_ranks_of, with_gathered
from workbench.runner.toggles.expert_parallel import with_experts
from workbench.runner.toggles.pipeline_parallel import of_stages
from workbench.runner.toggles.tensor_parallel import of_shares
from workbench.runner.wire import Wire
from workbench.runner.workloads import Workload, all_workloads

# A configuration near the limit may try, and run out of memory in earnest: that is a measurement.
# One that needs many times what there is would only thrash the host.
HOPELESS = 8
LONGEST_S = 1e9
FIRST_FAMILY = "hydra"  # what a first start chooses, and the demo runs

# What the options of the precision toggle mean for an estimate of memory.
_SIZES = {"fp32": "fp32", "tf32": "fp32", "amp_fp16": "amp", "amp_bf16": "amp", "bf16": "half"}

Value = TypeVar("Value")


def resolve(configuration: Configuration, device: torch.device) -> Situation:
    """Fill in every default and check every name and value.

    Of options joined by ``protocol.OR`` the first that can be used is taken; what was passed over
    is in ``left_out``. Raises ``Mistake`` or ``models.ConfigurationError`` with one sentence.
    """
    _check_seed(configuration.seed)
    family = _known("family", configuration.family, families())
    workload = _known("workload", configuration.workload, all_workloads())
    if workload.name not in family.workloads:
        raise Mistake(
            f"workload: {family.name} has no workload {workload.name!r}; "
            f"expected one of {family.workloads}"
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
        settings=_settings(configuration.settings, workload, family.suggested(preset, device.type)),
        toggles=toggles,
    )
    for name in toggles.keys() - configuration.toggles.keys():
        if _why(name, toggles[name], Situation(resolved, device, family, base, workload, base)):
            toggles[name] = all_toggles()[name].off  # a default is no demand
    left_out = _settle(preferred, Situation(resolved, device, family, base, workload, base))
    config = _configured(Situation(resolved, device, family, base, workload, base))
    situation = Situation(resolved, device, family, config, workload, base, left_out)
    family.check_memory(
        config, memory_bytes=HOPELESS * hardware.of(device).total_bytes, **_sizes(situation)
    )
    return situation


def footprint(situation: Situation) -> models.Footprint | None:
    """Return the estimate of a step's memory; None for a model of unknown costs."""
    step: dict[str, Any] = {
        "fused": _fused(situation),
        "compiled": situation.option("compile") != "off",
        "device_type": situation.device.type,
        "rope_shared": situation.option("rope_cache") == "shared",
        "workspace_bytes": _handles(situation) * hardware.of(situation.device).workspace_bytes,
        **_sizes(situation),
    }
    if staged := of_stages(situation, step):
        return with_gathered(staged, situation, step)
    estimate = situation.family.footprint(situation.config, sharding=_sharding(situation), **step)
    if not estimate.total:
        return None
    estimate = of_shares(situation, step) or with_experts(situation, step) or estimate
    return with_gathered(estimate, situation, step)


def _handles(situation: Situation) -> int:
    """Return how many workspaces cuBLAS has.

    The forward pass's thread and the backward pass's have one each, and the same again on the
    stream that a CUDA graph is captured on.
    """
    captured = situation.option("cuda_graphs") == "on"
    captured |= situation.option("compile") in WITH_GRAPHS
    return (2 if situation.workload.trains else 1) * (2 if captured else 1)


def _fused(situation: Situation) -> bool:
    """Return True if the library's kernels run: all, or the one that decides on memory."""
    decisive = ""
    if situation.family is not user_model.FAMILY:
        decisive = situation.family.costs(situation.config).decisive
    chosen = situation.option(f"triton_{decisive}") if decisive else "follow"
    return (situation.option("triton") if chosen == "follow" else chosen) in ("on", "triton")


def _sharding(situation: Situation) -> models.Sharding | None:
    """Return what ranks shard, if they do."""
    stage = situation.option("sharding")
    if stage == "off":
        return None
    return models.Sharding(ranks=layout_of(situation).shard, shares_weights=stage != "gradients")


def _sizes(situation: Situation) -> dict[str, Any]:
    """Return what a step's memory is estimated from."""
    settings, scheme = situation.configuration.settings, situation.option("quantization")
    return {
        "workload": situation.workload.name,
        "batch": -(-int(settings["batch"]) // batch_ranks_of(situation)),
        "sequence": -(-situation.workload.sequence(settings) // context_ranks_of(situation)),
        "precision": _SIZES[situation.option("precision")],
        "checkpointing": situation.option("checkpointing"),
        "chunk": int(settings.get("chunk", 0)),
        "attention": situation.option("attention"),
        "quantization": "" if scheme == "none" else scheme,
    }


def check_choice(configuration: Configuration, field: str, value: Scalar) -> None:
    """Raise ``Mistake`` or ``models.ConfigurationError`` for a value that is never possible.

    These are values that a preset, a workload, a toggle, or a field of the model that is a choice
    never has, whatever stands beside it.

    ``field`` is named as by ``Configuration.replaced``.
    """
    family = _known("family", configuration.family, families())
    group, _, name = field.partition(".")
    if field == "preset":
        _known(field, str(value), family.presets)
    elif field == "workload":
        _known(f"{field} of {family.name}", str(value), dict.fromkeys(family.workloads))
    elif group == "model":
        family.check_choice(name, value)
    elif group == "toggles":
        toggle = _known("toggle", name, all_toggles())
        for choice in str(value).split(OR):
            _known(f"toggle {name}", choice, toggle.options)


def families() -> dict[str, models.Family]:
    """Return the bundled families by name, the first start's choice first, and a person's files."""
    first = {FIRST_FAMILY: models.FAMILIES[FIRST_FAMILY]}
    return {**first, **models.FAMILIES, user_model.FAMILY.name: user_model.FAMILY}


def _why(name: str, option: str, situation: Situation) -> Blocked | None:
    """Return why an option of a toggle cannot be used in this situation."""
    toggle = all_toggles()[name]
    if option == toggle.off:
        return None
    if situation.family is user_model.FAMILY and (why := _not_of(toggle, situation)):
        return Blocked(*why, {name: toggle.off}, absent=True)
    return toggle.blocked(option, situation)


def _not_of(toggle: Toggle, situation: Situation) -> tuple[str, str] | None:
    """Return why a toggle does not act on a model of one's own, and what to do."""
    if toggle.bundled:
        return toggle.bundled, "Choose a bundled family."
    if not toggle.operators:
        return None
    called = set(user_model.called(situation.config))
    if len(toggle.operators) == 1:  # a switch for all kernels would not leave them automatic
        called |= {
            other.brings
            for other in all_toggles().values()
            if other.brings and situation.option(other.name) != other.off
        }
    if not called.isdisjoint(toggle.operators):
        return None
    acts = f"acts on kernels.{toggle.operators[0]}"
    if len(toggle.operators) > 1:
        acts = "acts on operators of kernels"
    fix = "Let it compute inside your model (toggles of Your model), or choose a bundled family."
    return f"{acts}, which your file does not call", fix


def _settle(
    preferred: Mapping[str, Sequence[str]], situation: Situation
) -> tuple[protocol.LeftOut, ...]:
    """Let each of these toggles take the first of its options that can be used, or the last.

    In order of stage: a later toggle sees what the earlier ones have come to.
    """
    toggles = situation.configuration.toggles
    left_out: list[protocol.LeftOut] = []
    for name in (name for name in all_toggles() if name in preferred):
        passed: list[tuple[str, Blocked]] = []
        for option in preferred[name]:
            toggles[name] = option
            config = _configured(situation)
            why = _why(name, option, dataclasses.replace(situation, config=config))
            if why is None or option == preferred[name][-1]:
                break
            passed.append((option, why))
        left_out += [
            protocol.LeftOut(
                toggle=name, option=option, taken=toggles[name], reason=why.reason, fix=why.fix
            )
            for option, why in passed
        ]
    return tuple(left_out)


def demand(wire: Wire, device: torch.device, *configurations: Configuration) -> list[Situation]:
    """Return the usable situations of a request; raises as ``resolve`` and ``require_unblocked``.

    The wire reports what a preset leaves out.
    """
    situations = [resolve(configuration, device) for configuration in configurations]
    for situation in situations:
        require_unblocked(situation)
    tell_left_out(wire, situations)
    return situations


def tell_left_out(wire: Wire, situations: Iterable[Situation]) -> None:
    """Report, once, every option that was preferred and is not used."""
    for option in dict.fromkeys(
        option for situation in situations for option in situation.left_out
    ):
        toggle = all_toggles()[option.toggle]
        text = (
            f"{toggle.title}: {toggle.options[option.taken]} in place of "
            f"{toggle.options[option.option]}, which cannot be used: {option.reason}"
        )
        wire.send(protocol.Note(kind="warning", text=text))


def _configured(situation: Situation) -> Any:
    """Return the model's configuration as the toggles change it; a blocked one changes nothing."""
    for name, toggle in all_toggles().items():
        option = situation.option(name)
        if toggle.configure is None or option == toggle.off or _why(name, option, situation):
            continue
        fields = toggle.configure(option, situation.config)
        config = dataclasses.replace(situation.config, **fields)
        situation = dataclasses.replace(situation, config=config)
    return situation.config


def check_limits(start: Start) -> None:
    """Raise ``Mistake`` for a length of the run that is none, or a share that leaves it none."""
    if start.steps is not None and start.steps < 1:
        raise Mistake(f"steps = {_shown(start.steps)}: a run has at least one step")
    if start.seconds is not None and not 0 < start.seconds <= LONGEST_S:
        raise Mistake(f"seconds = {start.seconds:g} is outside of 0 to {LONGEST_S:g}")
    if not 0 <= start.pairing_share <= MOST_PAIRING_SHARE:
        share = f"pairing_share = {start.pairing_share:g}"
        raise Mistake(f"{share} is outside of 0 to {MOST_PAIRING_SHARE:g}")


def require_unblocked(situation: Situation) -> None:
    """Raise ``Mistake`` for the first requested option that cannot be used."""
    for name in all_toggles():
        option = situation.option(name)
        if why := _why(name, option, situation):
            raise Mistake(f"toggle {name}={option} cannot be used: {why.reason}. {why.fix}")


def blocked_options(situation: Situation) -> dict[str, dict[str, Blocked]]:
    """Return every option that cannot be used in this situation, by toggle.

    If two options exclude each other and only one toggle knows why, both are blocked. A fix by
    toggles names all that could not stay as they are.
    """
    blocked: dict[str, dict[str, Blocked]] = {}
    chosen = {
        name: option
        for name, toggle in all_toggles().items()
        if (option := situation.option(name)) != toggle.off and not _why(name, option, situation)
    }
    for name, toggle in all_toggles().items():
        for option in toggle.options:
            why = _why(name, option, situation) or _opposed(name, option, situation, chosen)
            if why:
                complete = _complete(why, name, option, situation, chosen)
                blocked.setdefault(name, {})[option] = complete
    return blocked


def _opposed(
    name: str, option: str, situation: Situation, chosen: Mapping[str, str]
) -> Blocked | None:
    """Return which ``chosen`` options of other toggles cannot be used beside this one, and why.

    None of an option that is chosen itself, or leaves the model alone.
    """
    if option in (all_toggles()[name].off, situation.option(name)):
        return None
    beside = switched(situation, {name: option})
    for other, its_option in chosen.items():
        if other != name and (why := _why(other, its_option, beside)):
            toggle = all_toggles()[other]
            reason = f"does not go with {toggle.title}: {why.reason}"
            fix = f"Choose {toggle.title}: {toggle.options[toggle.off]}."
            return Blocked(reason, fix, {other: toggle.off})
    return None


def _complete(
    why: Blocked, name: str, option: str, situation: Situation, chosen: Mapping[str, str]
) -> Blocked:
    """Return the reason with a fix after which all ``chosen`` options can be used, or are off.

    Where the fix would need what cannot be used either, that is the reason.
    """
    toggles = all_toggles()
    if not why.set or not why.set.keys() <= toggles.keys():
        return why
    needed, given_up = dict(why.set), dict[str, str]()
    while True:
        fixed = switched(situation, {**given_up, **needed, name: option})
        inner = next(filter(None, (_why(other, needed[other], fixed) for other in needed)), None)
        left = chosen.keys() - {name, *needed, *given_up}
        more = {other: toggles[other].off for other in left if _why(other, chosen[other], fixed)}
        if inner is not None:
            if not inner.set or not inner.set.keys() <= toggles.keys() - needed.keys():
                return inner
            needed |= inner.set
            why = msgspec.structs.replace(why, fix=f"{why.fix} {inner.fix}")
        elif more:
            given_up |= more
        else:
            break
    fix = why.fix
    if given_up:
        titles = " and ".join(sorted(toggles[other].title for other in given_up))
        fix = f"{fix} {titles} cannot stay as chosen then."
    return msgspec.structs.replace(why, fix=fix, set={**needed, **given_up})


def switched(situation: Situation, options: Mapping[str, str]) -> Situation:
    """Return the situation with other options of some toggles."""
    toggles = {**situation.configuration.toggles, **options}
    configuration = msgspec.structs.replace(situation.configuration, toggles=toggles)
    changed = dataclasses.replace(situation, configuration=configuration)
    if all(all_toggles()[name].configure is None for name in options):
        return changed
    config = _configured(dataclasses.replace(changed, config=situation.base))
    return dataclasses.replace(changed, config=config)


def availability(configuration: Configuration, device: torch.device) -> Availability:
    """Return what is blocked under a configuration, and what keeps it from starting as it is."""
    try:
        situation = resolve(configuration, device)
    except ValueError as error:
        return Availability(configuration=configuration, blocked={}, problems=[str(error)])
    blocked = blocked_options(situation)
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


def default_preset(family: models.Family, device: torch.device) -> str:
    """Return the preset that a first start on this device chooses."""
    return family.default_preset(hardware.of(device).total_bytes, device.type)


def _known(what: str, name: str, allowed: Mapping[str, Value]) -> Value:
    if name not in allowed:
        raise Mistake(f"{what}: unknown {name!r}; expected {expected(name, allowed)}")
    return allowed[name]


def _settings(
    requested: Mapping[str, Scalar], workload: Workload, suggested: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    fields = {field.name: field for field in workload.fields}
    for name in requested:
        _known(f"setting of {workload.name}", name, fields)
    return {
        name: _number(field, requested.get(name, suggested.get(name, field.default)))
        for name, field in fields.items()
    }


def _number(field: Field, value: Scalar) -> int | float:
    """Return ``value`` as the field's kind, whole or not; raises ``Mistake``."""
    return _real(field, value) if isinstance(field.default, float) else _whole(field, value)


def _real(field: Field, value: Scalar) -> float:
    low, high = field.minimum or 0.0, field.maximum or float("inf")
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        number = float("nan")
    if not low <= number <= high:  # nor is NaN
        raise Mistake(
            f"setting {field.name} = {_shown(value)} is not a number from {low:g} to {high:g}"
        )
    return number


def _whole(field: Field, value: Scalar) -> int:
    low, high = field.minimum or 0, field.maximum or float("inf")
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise Mistake(
            f"setting {field.name} = {_shown(value)} is not a whole number from {low:.0f} to "
            f"{high:.0f}"
        ) from None
    if not low <= number <= high:
        raise Mistake(
            f"setting {field.name} = {_shown(number)} is outside of {low:.0f} to {high:.0f}"
        )
    return number


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise Mistake(f"seed = {_shown(seed)} is outside of 0 to 2^63 - 1")


def _shown(value: Scalar) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"
