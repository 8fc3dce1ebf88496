"""The change that is most likely to help when a run fails, and that can be made.

Each toggle names its fixes for a kind of failure, and their order among all; the first that changes
something and is not blocked is offered, with what it costs.
"""

from __future__ import annotations

import msgspec
import torch

from sessions.model import Configuration, Judgement
from sessions.verdicts.verdict import REGION
from sessions.verdicts.verdict_words import judgement_words
from workbench import protocol
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.estimate import footprint
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Situation
from workbench.runner.toggles import Fix, all_toggles

BATCH = "batch"  # the only setting that a fix may change
OUT_OF_MEMORY = "out-of-memory"


def with_fix(
    failure: protocol.Failure, configuration: Configuration | None, device: torch.device
) -> protocol.Failure:
    """Return the failure with the choice that should help, if there is one."""
    if configuration is None or failure.clears:
        return failure
    try:
        situation = resolve(configuration, device)
    except ValueError:  # the failure is that it cannot be resolved
        return failure
    for fix in _fixes(failure, situation):
        if _possible(situation, fix.choices):
            sentence = f"{_choices_text(fix.choices)}: {fix.meaning}."
            return msgspec.structs.replace(failure, fix=sentence, set=fix.choices)
    return failure


def not_finite(quantity: str) -> protocol.Failure:
    """Return the failure of steps whose ``quantity`` (loss, output) is not finite."""
    return protocol.Failure(
        kind="nan",
        sentence=f"The {quantity} is not finite (NaN or infinite): the steps continue, but their "
        "results mean nothing.",
        fix="In FP32 with plain kernels, the cause is the model or its data: look for a division "
        "by zero, a logarithm of zero, an overflow, or weights that diverged.",
    )


def slower_when_switched_on(
    base: Configuration, other: Configuration, judgement: Judgement
) -> protocol.Failure | None:
    """Return advice if a verdict says SLOWER and a toggle with usual causes was switched on.

    The toggle is the cause only where nothing else differs.
    """
    if judgement.verdict != "SLOWER" or judgement.ratio is None:
        return None
    toggles = all_toggles()
    options = [
        {name: side.toggles.get(name, toggle.off) for name, toggle in toggles.items()}
        for side in (base, other)
    ]
    changed = [name for name in toggles if options[0][name] != options[1][name]]
    sides = [msgspec.structs.replace(side, toggles={}) for side in (base, other)]
    words = judgement_words(judgement, REGION)
    for name in changed:
        toggle = toggles[name]
        if toggle.causes_of_slowness and options[0][name] == toggle.off:
            sentence = f"{toggle.title} made the step {words}."
            if len(changed) > 1 or sides[0] != sides[1]:
                sentence = f"The step is {words}; {toggle.title}, one of the changes, may be why."
            return protocol.Failure(
                kind="slower",
                sentence=sentence,
                fix=f"Set {toggle.title} to {toggle.options[toggle.off]}. "
                f"{toggle.causes_of_slowness}",
                set={name: toggle.off},
            )
    return None


def _fixes(failure: protocol.Failure, situation: Situation) -> list[Fix]:
    """Return the fixes that may help, in the order in which to try them."""
    needed = footprint(situation) if failure.kind == OUT_OF_MEMORY else None
    fixes = [
        fix for toggle in all_toggles().values() for fix in toggle.fixes(failure, situation, needed)
    ]
    batch = int(situation.configuration.settings[BATCH])
    if failure.kind == OUT_OF_MEMORY and batch > 1:
        meaning = f"half of the present {batch} sequences per step"
        fixes.append(Fix(50, {BATCH: str(batch // 2)}, meaning))
    if failure.kind == protocol.RANKS:
        fixes.append(_on_one_device(situation))
    return sorted(fixes, key=lambda fix: fix.order)


def _on_one_device(situation: Situation) -> Fix:
    devices = [toggle for toggle in all_toggles().values() if toggle.group == "Devices"]
    used = [toggle for toggle in devices if situation.option(toggle.name) != toggle.off]
    meaning = "one device continues alone; run again without this to restart the other ranks"
    return Fix(10, {toggle.name: toggle.off for toggle in used}, meaning)


def _possible(situation: Situation, choices: dict[str, str]) -> bool:
    """Return True if the choices change something and can be made."""
    toggles = {name: option for name, option in choices.items() if name != BATCH}
    before = situation.configuration
    after = msgspec.structs.replace(before, toggles={**before.toggles, **toggles})
    if BATCH in choices:
        settings = {**before.settings, BATCH: int(choices[BATCH])}
        after = msgspec.structs.replace(after, settings=settings)
    if after == before:
        return False
    try:
        require_unblocked(resolve(after, situation.device))
    except (Mistake, ValueError):
        return False
    return True


def _choices_text(choices: dict[str, str]) -> str:
    parts = []
    for name, option in choices.items():
        toggle = all_toggles().get(name)
        title = "Batch" if toggle is None else toggle.title
        parts.append(f"{title} to {option if toggle is None else toggle.options[option]}")
    return "Set " + " and ".join(parts)
