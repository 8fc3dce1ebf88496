"""The wire of an optimization, and its study, made of a simulated space with planted effects."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from simulated_bench import SimulatedBench

from sessions.model import Study
from sessions.studies.optimization.rows import (
    candidate_rows,
    final_facts,
    option_rows,
    verdict_rows,
)
from sessions.studies.optimization.search import Search
from sessions.studies.optimization.space import Dimension, Goal
from sessions.studies.optimization.verdicts import Verdicts
from workbench import protocol
from workbench.client.recorder import Recorder

DIMENSIONS = (
    Dimension("precision", ("fp32", "amp_bf16"), "fp32"),
    Dimension("compile", ("off", "default"), "off"),
    Dimension("adamw", ("loop", "foreach", "fused"), "loop"),
    Dimension("checkpointing", ("off", "full"), "off"),
    Dimension("rope_cache", ("per_layer", "shared"), "per_layer"),
)
EFFECTS = {(0, "amp_bf16"): -0.5, (1, "default"): -0.3, (2, "foreach"): -0.02,
           (2, "fused"): -0.03, (3, "full"): 0.25, (4, "shared"): -0.9}  # fmt: skip
MEMORY = {(0, "amp_bf16"): -0.4, (3, "full"): -0.6, (4, "shared"): -0.2}
BLOCKED = {("cuda_graphs", "on"): "needs a CUDA GPU"}
RESULT = "precision=amp_bf16, compile=default, adamw=fused"


@functools.cache
def searched(gains: bool = True, memory: bool = True) -> tuple[Search, Verdicts]:
    """Return a search that has ended; without ``gains`` nothing is better than the start."""
    bench = SimulatedBench(
        DIMENSIONS,
        EFFECTS if gains else dict.fromkeys(EFFECTS, 0.2),
        memory=MEMORY,
        wrong=frozenset({(4, "shared")}),
        builds_s={(1, "default"): 20.0},
        noise=0.003,
        counts_memory=memory,
        base_ms=31.0,
    )
    search = Search(DIMENSIONS, bench, Goal(budget_s=900.0))
    search.run()
    verdicts = Verdicts(search, half_width=0.01)
    verdicts.run()
    return search, verdicts


def study(**options) -> Study:
    """Return the study that the messages make."""
    recorder = Recorder()
    for message in messages(**options):
        recorder.record(message)
    (made,) = recorder.session.studies
    return made


def messages(
    now: float = 1.0, index: int = 0, final: bool = True, gains: bool = True, memory: bool = True
) -> Iterator[protocol.AnyMessage]:
    """Yield an optimization; up to the middle of its search where it is not ``final``."""
    search, verdicts = searched(gains, memory)
    question = {
        "objective": "time",
        "budget_s": 900.0,
        "region": 0.01,
        "floor": 0.0,
        "start": [f"{dimension.name}={dimension.start}" for dimension in DIMENSIONS],
    }
    title = "moe train: best configuration"
    yield protocol.StudyStarted(
        t_s=now, index=index, kind="optimization", title=title, request=question
    )
    counted = "counted by the allocator" if memory else "not measured: on the CPU"
    yield protocol.StudyFacts(t_s=now, study=index, facts={"memory": counted})
    tables = {
        "candidates": candidate_rows(search, verdicts),
        "options": option_rows(search, verdicts, BLOCKED),
        "blocks": {
            "phase": ["search", "verdicts"], "round": [1, 1], "candidate": [0, 1],
            "median_ms": [31.0, 25.0], "clock_mhz": [None, None], "mean_ms": [31.0, 25.0],
            "joules": [None, None], "void": ["", ""],
        },
    }  # fmt: skip
    if final and verdicts.effects:
        tables["effects"] = verdict_rows(verdicts)
    for table, columns in tables.items():
        yield protocol.StudyRows(t_s=now, study=index, table=table, columns=columns, replace=True)
    yield protocol.Progress(t_s=now, task="optimizing", fraction=0.5, text="5 configurations")
    if final:
        facts = final_facts(search, verdicts)
        yield protocol.StudyFacts(t_s=now + 1, study=index, facts=facts)
