"""The commands that experiments are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sessions.model import Configuration, Scalar
from workbench import protocol


def eager(catalogue: protocol.Catalogue, **chosen: str) -> dict[str, str]:
    """Return the default options, which leave the model alone, with ``chosen`` in their place."""
    return {toggle.name: toggle.options[0].name for toggle in catalogue.toggles} | chosen


def on_gpu(catalogue: protocol.Catalogue) -> bool:
    """Return True if the runner has a GPU."""
    return catalogue.device == "cuda"


def configuration(
    family: str,
    preset: str,
    toggles: Mapping[str, str],
    *,
    workload: str = "forward",
    batch: int = 1,
    sequence: int = 64,
    model: Mapping[str, Scalar] | None = None,
) -> Configuration:
    """Return a claim's complete configuration, so that no default of the device enters."""
    return Configuration(
        family=family,
        preset=preset,
        model=dict(model or {}),
        workload=workload,
        settings={"batch": batch, "sequence": sequence},
        toggles=dict(toggles),
    )


def checked_run(configuration: Configuration) -> protocol.Start:
    """Return a short run whose numbers are compared with a reference after its last step."""
    return protocol.Start(configuration=configuration, steps=5, check="last")


def ladder(base: Configuration, budget_s: float, **toggles: str) -> protocol.Attribute:
    """Add toggles to a base one after the other."""
    return protocol.Attribute(base=base, toggles=toggles, budget_s=budget_s)


def backward(base: Configuration, budget_s: float, **toggles: str) -> protocol.Attribute:
    """Return a ladder that times the backward passes alone."""
    return protocol.Attribute(base=base, toggles=toggles, budget_s=budget_s, timed="backward")


def profiles(base: Configuration, steps: int = 3, **toggles: str) -> list[protocol.Command]:
    """Return a profile of a base, and one of the base with toggles."""
    changed = msgspec.structs.replace(base, toggles={**base.toggles, **toggles})
    return [protocol.Profile(configurations=[arm], steps=steps) for arm in (base, changed)]


def forward(
    kernels: Iterable[Sequence], implementations: Iterable[str], budget_s: float
) -> protocol.Bench:
    """Return a benchmark of operators, each at one case: a claim reads the forward time."""
    chosen = [(str(name), str(case)) for name, case, *_ in kernels]
    return protocol.Bench(
        operators=[name for name, _ in chosen],
        cases=[case for _, case in chosen],
        implementations=sorted(set(implementations)),
        forward_only=True,
        budget_s=budget_s,
    )
