"""A session with content for every section and export."""

from __future__ import annotations

import dataclasses

import attribution_samples
import claims_samples
import optimization_samples
import profile_samples
from synthetic import bench_session, comparison, gpu_session, sweep_study

from sessions.model import Evidence, Session, Study
from sessions.studies import checklist
from workbench.client.recorder import Recorder


def checked() -> Study:
    return Study(
        checklist.KIND,
        "hydra base train",
        1.0,
        tables={
            "checks": {
                "check": ["numerics", "syncs"],
                "status": ["pass", "fail"],
                "evidence": ["relative error 1e-7", "2 in a step"],
            },
            "lines": {
                "check": ["syncs"],
                "line": ["models/layers/routing.py:88 in forward: .item()"],
            },
        },
    )


def everything() -> Session:
    """Return a session with something for every section of a report but that of several."""
    recorder = Recorder()
    for message in claims_samples.messages(1.0):
        recorder.record(message)
    session = gpu_session(steps=200)
    session.comparisons = [comparison(0), comparison(1)]
    session.segments[1].evidence = [Evidence("precision", "bf16", "effective", "tensors are BF16")]
    bench = bench_session()
    session.segments += [
        dataclasses.replace(segment, index=len(session.segments) + offset)
        for offset, segment in enumerate(bench.segments)
    ]
    session.studies = [
        *recorder.session.studies,
        attribution_samples.study(),
        optimization_samples.study(),
        sweep_study(),
        profile_samples.study(),
        checked(),
    ]
    return session
