"""The toggles that each forbid one backend in PyTorch's automatic choice for SDPA.

They affect models that call ``scaled_dot_product_attention`` and let PyTorch choose: those with the
attention backend "SDPA, torch's choice", and users' models. The proof is that PyTorch would choose
another backend if this one were allowed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.profiling import instrumented
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)
from workbench.runner.user_models import global_flags, user_model

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed

_PREFIX = "sdp_"
_ON_CPU = ("flash", "math")
OWN_CHOICE = "sdpa"  # the attention backend that lets PyTorch choose


def sdp_toggle(name: str, backend: str, help: str) -> Toggle:
    """Return the toggle that forbids one backend; ``backend`` is its name for users."""
    enabled, enable = global_flags.SDP[name.removeprefix(_PREFIX)]

    @contextlib.contextmanager
    def switched(on: bool) -> Iterator[None]:
        before = enabled()
        enable(on)
        try:
            yield
        finally:
            enable(before)

    def apply(option: str, build: Build) -> None:
        build.flags.append(lambda: switched(False))

    def evidence(option: str, observed: Observed) -> Finding:
        with instrumented.AttentionChoices(lambda: switched(True)) as choices:
            instrumented.call(observed)
        if not choices.chosen:
            return no_effect("this model never calls scaled_dot_product_attention")
        changes = [
            f"{counted(count, 'SDPA call')} ran {current}; with {backend} allowed: {before}"
            for (current, before), count in choices.chosen.items()
            if current != before
        ]
        if changes:
            return effective("; ".join(changes))
        ran = ", ".join(f"{count} {current}" for (current, _), count in choices.chosen.items())
        return no_effect(f"torch would not choose {backend} here: SDPA calls ran {ran}")

    return Toggle(
        name=name,
        title=f"SDPA: {backend}",
        help=help,
        group="Attention",
        stage=Stage.ATTENTION,
        options={"allowed": "Allowed", "forbidden": "Forbidden"},
        apply=apply,
        evidence=evidence,
        blocked=functools.partial(_blocked, name),
        incomparable="which kernel torch would choose instead is unknown before a run",
    )


def _blocked(name: str, option: str, situation: Situation) -> Blocked | None:
    """Return why an option of the toggle ``name`` has no effect, or leaves no backend."""
    if option == "allowed":
        return None
    if not situation.on_gpu and name.removeprefix(_PREFIX) not in _ON_CPU:
        return NEEDS_GPU
    if situation.family is not user_model.FAMILY and situation.option("attention") != OWN_CHOICE:
        return Blocked(
            "affects only torch's automatic choice, but the attention toggle selects a backend",
            "Choose Attention backend: SDPA, torch's choice.",
            {"attention": OWN_CHOICE},
        )
    backends = global_flags.SDP if situation.on_gpu else _ON_CPU
    alternatives = [f"{_PREFIX}{backend}" for backend in backends if _PREFIX + backend != name]
    if all(situation.option(toggle) == "forbidden" for toggle in alternatives):
        return Blocked(
            "all other SDPA backends are forbidden, and one must be allowed",
            "Allow another one.",
            {alternatives[-1]: "allowed"},
        )
    return None
