"""The tiles (block sizes, warps, stages) that the bundled Triton kernels use.

Each kernel knows a few useful tiles. Its heuristic selects one of them by rules that were measured
on an H200. *Tune missing tiles* times all of them on this GPU instead, once for each width and
dtype and not for each batch size, and stores the fastest. Later runs use the stored tiles, unless
*Heuristics* is chosen. A tile whose results differ from those of the heuristic's tile is never
used. Tuning runs before the first step, as its own phase; the timeline shows how long it took. On
an H200 one more pipeline stage reduced RMSNorm's backward pass from 45 to 31 us at 16,384 rows of
768; block sizes and warps changed SwiGLU by less than 3 %.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import TYPE_CHECKING

import kernels
from sessions.model import Phase
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.profiling import instrumented
from workbench.runner.toggles._kernel_toggle import unavailable, with_triton
from workbench.runner.toggles._patch_toggle import brought
from workbench.runner.toggles._toggle import (
    Alternative,
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from sessions.model import Scalar
    from workbench.runner.instruments.phases import PhaseTracker
    from workbench.runner.interfaces import MarkedVariant
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

_SHOWN = 3  # kernels named in a sentence
_ORIGINS = {"tuned": "tuned", "disk": "from disk", "heuristic": "by heuristic"}


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "cached":
        return None
    missing = unavailable("rms_norm", "triton", situation)
    if missing is not None:
        return missing
    if situation.has(Trait.TRITON):
        return _untunable(situation) if situation.is_own_model else None
    return Blocked(
        "needs Triton kernels, but every operator runs in PyTorch",
        "Switch the Triton kernels on.",
        {"triton": "on"},
    )


def _untunable(situation: Situation) -> Blocked | None:
    """Return why no operator that a user's model calls can run a bundled Triton kernel."""
    from workbench.runner.toggles import all_toggles  # avoids an import cycle
    from workbench.runner.user_models import user_model

    operators = set(user_model.called(situation.config)) | brought(situation)
    refusing: dict[str, str] = {}
    for toggle in all_toggles().values():
        option = situation.option(toggle.name)
        runs_triton = option == toggle.off or Trait.TRITON in toggle.traits.get(option, ())
        if len(toggle.operators) == 1 and not runs_triton:
            refusing |= dict.fromkeys(operators.intersection(toggle.operators), toggle.name)
    if refusing.keys() != operators:
        return None
    titles = " and ".join(sorted(all_toggles()[name].title for name in refusing.values()))
    return Blocked(
        "needs Triton kernels, but every operator that your model calls has another implementation",
        f"Let {titles} choose a Triton kernel.",
        {name: all_toggles()[name].off for name in refusing.values()},
    )


def _apply(option: str, build: Build) -> None:
    if option == "off":
        build.flags.append(functools.partial(kernels.tuning, "off"))
    else:
        build.preparations.append(functools.partial(_tune, build.phases))


def _tune(phases: PhaseTracker, variant: MarkedVariant) -> dict[str, Scalar]:
    """Run one step with its gradients, so that every kernel is called and tuned.

    Return how long that took, for the ledger.
    """
    began = time.perf_counter()
    with phases.during(Phase.AUTOTUNE), kernels.tuning("on"):
        variant.restart()
        instrumented.call(variant, backward=True)
    return {"autotune_s": round(time.perf_counter() - began, 4)}


def origins(choices: list[kernels.Choice]) -> str:
    """Return the number of tiles by their origin: "2 tuned, 5 by heuristic"."""
    counts = Counter(choice.source for choice in choices)
    return ", ".join(f"{counts[s]} {text}" for s, text in _ORIGINS.items() if counts[s])


def _evidence(option: str, observed: Observed) -> Finding:
    choices = observed.record.tiles
    if not choices:
        return no_effect("no Triton kernel with a choice of tiles was launched")
    text = f"tiles of {counted(len(choices), 'launch')}: {origins(choices)}"
    if option == "off":
        if any(choice.source != "heuristic" for choice in choices):
            return no_effect(text)
        if not kernels.are_stored(choices):
            return no_effect(f"{text}, the same as without this option: no tile is stored for them")
        return effective(text)
    if tuning_s := observed.ledger.get("autotune_s"):
        text += f", tuning took {tuning_s:.3g} s"
    untuned = [choice for choice in choices if choice.note]
    if untuned:
        text += f"; {untuned[0].kernel}: {untuned[0].note}"
    if unstored := next((choice.unstored for choice in choices if choice.unstored), ""):
        text += f"; not stored: {unstored}"
    better = [choice for choice in choices if choice.tile != choice.heuristic]
    if not better:
        return no_effect(f"{text}; no tile was faster than the heuristic's while tuning")
    better.sort(key=lambda choice: choice.us / choice.heuristic_us)
    named = [f"{c.kernel} {c.heuristic_us / c.us:.2f}x" for c in better[:_SHOWN]]
    return effective(
        f"{text}; faster than the heuristic's while tuning: {len(better)} ({', '.join(named)})"
    )


TOGGLE = Toggle(
    name="kernel_tuning",
    title="Kernel tuning",
    help=__doc__,
    group="Kernels",
    stage=Stage.KERNELS,
    options={"cached": "Stored tiles", "off": "Heuristics", "on": "Tune missing tiles"},
    apply=_apply,
    evidence=_evidence,
    same_work=True,
    blocked=_blocked,
    operators=with_triton(),
    traits={"on": (Trait.TILES_TUNED, Trait.AUTOTUNED)},
    alternatives={"on": (Alternative("Use the stored tiles.", {"kernel_tuning": "cached"}),)},
)
