"""A session that ended at any message of a study is told, exported and reported as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attribution_samples
import claims_samples
import msgspec
import numpy as np
import optimization_samples
import pytest
import scaling_samples
import wire_samples

from sessions.exports import exportable
from sessions.model import Phase, Session
from sessions.reproduction.command_lines import session_commands
from sessions.storage.study_schema import STUDIES
from sessions.studies import sweep
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.commands.info import _study, _study_lines
from workbench.plots import PLOTS, Run
from workbench.report import SECTIONS


def swept() -> Iterator[protocol.AnyMessage]:
    """Return a sweep of two sizes under one arm, with its numbers and fits."""
    request = {
        "fields": ["settings.batch"], "values_0": [1, 2], "arms": ["defaults"],
        "toggles": ["{}"], "points": 2, "order": "in random order", "seed": 0,
    }  # fmt: skip
    yield protocol.StudyStarted(index=0, kind=sweep.KIND, title="s", request=request)
    measured = {name: [1.0] for name in sweep._NUMBERS}
    for x in (1.0, 2.0):
        numbers = {"arm": [0.0], "right": [None], "text": ["not checked: cancelled"]}
        yield protocol.StudyRows(study=0, table=sweep.NUMBERS, columns=numbers)
        point = {"x": [x], "arm": [0.0], "outcome": [sweep.MEASURED], "reason": [""]}
        yield protocol.StudyRows(study=0, table=sweep.POINTS, columns=point | measured)
    yield protocol.StudyFacts(study=0, facts={"final": True})


def checked() -> Iterator[protocol.AnyMessage]:
    """Return a checklist of which two checks are done."""
    yield protocol.StudyStarted(index=0, kind="checklist", title="c", request={})
    yield protocol.StudyRows(
        study=0, table="lines", columns={"check": ["syncs"], "line": ["a.py:8"]}
    )
    for name in ("numerics", "syncs"):
        columns = {"check": [name], "status": ["pass"], "evidence": ["as expected"]}
        yield protocol.StudyRows(study=0, table="checks", columns=columns)


def profiled() -> Iterator[protocol.AnyMessage]:
    """Return a profile without a kernel."""
    yield protocol.StudyStarted(index=0, kind="profile", title="p", request={"device": "cpu"})
    yield protocol.StudyFacts(study=0, facts={"step_us": 5.0})


def compared() -> Iterator[protocol.AnyMessage]:
    yield from wire_samples.comparison(np.random.default_rng(0), 1.0)


STREAMS = {
    "attribution": lambda: attribution_samples.messages(1.0),
    "optimization": lambda: optimization_samples.messages(1.0),
    "claims": lambda: claims_samples.messages(1.0),
    "sweep": swept,
    "checklist": checked,
    "profile": profiled,
    "scaling": scaling_samples.messages,
    "comparison": compared,
}


def prefixes(messages: Iterable[protocol.AnyMessage]) -> Iterator[Session]:
    """Yield the session after each message; two segments come before all of them."""
    recorder = Recorder()
    recorder.record(wire_samples.catalogue())
    order = protocol.Start(configuration=wire_samples.configuration())
    recorder.record(protocol.Ordered(command=order))
    for index in range(2):
        for message in wire_samples.begin(0.1 + index, index):
            recorder.record(message)
        steps = wire_samples.steps(np.random.default_rng(0), 0.1 + index, index, Phase.STEADY)
        recorder.record(steps)
    for message in messages:
        recorder.record(protocol.decode_message(protocol.encode(message)))
        yield recorder.session


def test_every_kind_of_study_is_among_these():
    assert STREAMS.keys() >= STUDIES.keys()


@pytest.mark.parametrize("kind", STREAMS)
def test_whatever_it_ended_at_a_session_is_told_as_far_as_it_goes(kind, qapp):
    seen = 0
    for session in prefixes(STREAMS[kind]()):
        seen += 1
        assert all(
            table.to_markdown() for tables in exportable(session).values() for table in tables
        )
        assert session_commands(session).startswith("#!/bin/sh")
        for study in session.studies:
            printed = "\n".join(_study_lines(study))
            assert not printed.endswith(" rows"), "the command that makes it could not tell of it"
            msgspec.json.encode(_study(study)["asked"])
        run = Run(session, "interrupted")
        for section in SECTIONS.values():
            if not section.why_not([run]):
                list(section.parts([run]))
        for plot in PLOTS.values():
            plot.can_show([run])
            plot.choices([run])
    assert seen > 1
