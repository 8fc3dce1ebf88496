"""The wire of an attribution, and its study, made of effects that are planted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sessions.model import Evidence, Numerics, Study
from sessions.studies.attribution import design, estimation
from sessions.studies.attribution.rows import Arm, arm_rows, effect_rows
from workbench import protocol
from workbench.client.recorder import Recorder

TIME = {"compile": 0.66, "precision": 0.52, "checkpointing": 1.24, "cuda_graphs": 0.93}
MEMORY = {"compile": 0.97, "precision": 0.58, "checkpointing": 0.61, "cuda_graphs": 1.08}
GIB = 2**30


TOGGLES = {
    "compile": "default",
    "precision": "amp_bf16",
    "checkpointing": "full",
    "cuda_graphs": "on",
}


def study(**options) -> Study:
    """Return the study that the messages make."""
    recorder = Recorder()
    for message in messages(**options):
        recorder.record(message)
    (study,) = recorder.session.studies
    return study


def messages(
    now: float = 1.0,
    toggles: Mapping[str, str] = TOGGLES,
    mode: str = "ladder",
    blocked: Mapping[str, str] | None = None,
    rounds: int = 16,
    looks: int = 1,
    short: Sequence[int] = (),
    memory: bool = True,
    index: int = 0,
    scatter: float = 0.012,
) -> Iterator[protocol.AnyMessage]:
    """Yield an attribution to its end; ``short`` are arms that run out of memory."""
    rng = np.random.default_rng(3)
    blocked = dict(blocked or {})
    names = [name for name in toggles if name not in blocked]
    titles = [f"{name}={toggles[name]}" for name in names]
    orders = design.sampled_orders(len(names), 8, 0) if mode == "shapley" else []
    subsets = design.subsets(mode, len(names), orders)
    arms = []
    for number, subset in enumerate(subsets):
        title = "base" if not subset else ", ".join(titles[toggle] for toggle in sorted(subset))
        if mode == "ladder" and subset:
            title = f"+ {titles[max(subset)]}"
        arm = Arm(subset, title, numerics=numerics())
        arm.evidence = [Evidence("compile", "default", "no effect", "the model ran eagerly")]
        own = [MEMORY.get(names[toggle], 0.9) for toggle in subset]
        arm.peak_bytes = 11.2 * GIB * math.prod(own) if memory else math.nan
        if number in short:
            arm.state, arm.reason = "out of memory", "Out of memory: 3.0 GiB more was needed."
            arm.peak_bytes = math.nan
        arms.append(arm)
    request = {"mode": mode, "toggles": titles, "family": "moe", "budget_s": 60.0}
    title = f"moe train: {mode}"
    yield protocol.StudyStarted(
        t_s=now, index=index, kind="attribution", title=title, request=request
    )
    if blocked:
        options = [f"{name}={toggles[name]}" for name in blocked]
        rows = {"toggle": options, "reason": [*blocked.values()]}
        yield protocol.StudyRows(t_s=now, study=index, table="blocked", columns=rows)
    counted = (
        "counted by the allocator for one arm at a time" if memory else "not measured: on the CPU"
    )
    yield protocol.StudyFacts(t_s=now, study=index, facts={"memory": counted})
    missing = {n: arm.reason for n, arm in enumerate(arms) if arm.state != "measured"}
    wanted = design.contrasts(mode, titles, subsets, missing, orders)
    truth = np.array(
        [math.prod(TIME.get(names[toggle], 0.9) for toggle in subset) for subset in subsets]
    )
    medians = 31.0 * truth * np.exp(rng.normal(0, scatter, (rounds, len(arms))))
    medians[:, list(missing)] = np.nan
    peaks = [arm.peak_bytes for arm in arms]
    for number in range(rounds // looks, rounds + 1, rounds // looks):
        now += 0.5
        so_far = medians[:number]
        effects = estimation.measure(wanted, so_far, np.full_like(so_far, np.nan))
        exact = estimation.memory(wanted, peaks) if memory else []
        for table, columns in (
            ("effects", effect_rows(effects, exact)),
            ("arms", arm_rows(arms, so_far)),
        ):
            yield protocol.StudyRows(
                t_s=now, study=index, table=table, columns=columns, replace=True
            )
        text = f"{number} rounds of {len(arms)} arms"
        yield protocol.Progress(t_s=now, task="alternating", fraction=number / rounds, text=text)
    facts = {"final": True, "rounds": rounds, "seconds": 0.5 * rounds, "settled": True}
    yield protocol.StudyFacts(t_s=now, study=index, facts={**facts, "rebuilt_each_block": False})


def numerics() -> Numerics:
    return Numerics(
        reference="float64",
        ok=True,
        text="relative error 8e-4, at most 0.0021 expected",
        max_error=0.01,
        mse=6e-7,
    )
