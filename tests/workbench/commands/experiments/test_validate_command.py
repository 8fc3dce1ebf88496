"""``workbench validate``: what it asks of the runner, answers, keeps and exits with."""

from __future__ import annotations

import json

import pytest
import wire_samples
from sent_commands import only

from sessions.storage import hdf5
from sessions.studies import checklist
from sessions.studies.checklist import CHECKS
from workbench import protocol
from workbench.cli import main


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def answers(catalogue, done=tuple(CHECKS), reason="done", facts=None, **states):
    """Return the messages of a checklist: all checks pass except those in ``states``."""
    messages = [catalogue, *wire_samples.begin(0.1, 0)]
    messages.append(
        protocol.StudyStarted(t_s=0.2, index=0, kind="checklist", title="tiny: on", request={})
    )
    for name in done:
        status = states.get(name, "pass")
        if status == "fail":
            columns = {"check": [name], "line": [f"net.py:7 in forward: {name}()"]}
            messages.append(protocol.StudyRows(t_s=0.3, study=0, table="lines", columns=columns))
        row = {"check": [name], "status": [status], "evidence": [f"because of {name}"]}
        messages.append(protocol.StudyRows(t_s=0.3, study=0, table="checks", columns=row))
    if facts is not None:
        messages.append(protocol.StudyFacts(t_s=0.4, study=0, facts=facts))
    return [*messages, protocol.Finished(t_s=9.0, reason=reason, steps=9)]


def test_the_configuration_and_what_is_expected_of_it_are_asked_for(ran, sent):
    commands = sent(*answers(ran.catalogue))
    arguments = ["--preset", "tiny", "--workload", "train", "--toggle", "precision=bf16"]
    arguments += ["--expect-speedup", "1.5", "--batch", "3", "--batch", "7", "--steps", "30"]
    assert main(["validate", "hydra", *arguments, "--budget", "4"]) == 0
    command = only(commands, protocol.Validate)
    assert command.configuration.toggles == {"precision": "bf16"}
    assert command.configuration.workload == "train"
    assert (command.expect_speedup, command.batches) == (1.5, [3, 7])
    assert (command.steps, command.budget_s) == (30, 4.0)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, 0),
        ({"graph": "not applicable", "speedup": "not applicable"}, 0),
        ({"syncs": "fail"}, 1),
        ({"numerics": "not checked"}, 1),
        ({"speedup": "undecided"}, 3),
        ({"speedup": "undecided", "graph": "not applicable"}, 3),
        ({"speedup": "undecided", "syncs": "fail"}, 1),
        ({"speedup": "undecided", "numerics": "not checked"}, 1),
        ({"speedup": "undecided", "done": ("numerics", "speedup")}, 1),
        ({"done": ("numerics", "syncs")}, 1),
        ({"reason": "failed", "syncs": "fail"}, 1),
        ({"reason": "cancelled", "done": ()}, 130),
    ],
)
def test_the_exit_code_is_0_only_if_every_check_passed_and_3_if_more_seconds_may_do(
    ran, sent, given, code
):
    sent(*answers(ran.catalogue, **given))
    assert main(["validate", "hydra"]) == code


def test_each_check_is_told_with_its_evidence_and_lines_and_saved(ran, sent, tmp_path, capsys):
    path = tmp_path / "checked.h5"
    sent(*answers(ran.catalogue, memory="fail", graph="not applicable"))
    assert main(["validate", "hydra", "-o", str(path)]) == 1
    out = capsys.readouterr().out
    assert "PASS           Error within tolerance: because of numerics" in out
    assert "NOT APPLICABLE Fixed graph: because of graph" in out
    assert "FAIL           Memory: because of memory\n" + " " * 17 + "net.py:7 in forward" in out
    assert "4 pass, 1 fail, 1 not applicable" in out
    saved = checklist.newest(hdf5.load(path))
    assert [row.name for row in checklist.failed(saved)] == ["memory"]


def test_json_has_every_check_those_not_done_too(ran, sent, capsys):
    sent(*answers(ran.catalogue, done=("numerics",)))
    main(["validate", "hydra", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in answer["checks"]] == list(CHECKS)
    assert [check["status"] for check in answer["checks"]] == ["pass"] + ["waiting"] * 5


def test_what_is_undecided_is_told_with_the_budget_that_should_decide_it(ran, sent, capsys):
    facts = {"more_s": 57.2, "seconds": 3.1}
    sent(*answers(ran.catalogue, speedup="undecided", facts=facts))
    assert main(["validate", "hydra"]) == 3
    out = capsys.readouterr().out
    assert "UNDECIDED      Speed-up: because of speedup" in out
    assert "5 pass, 1 undecided" in out
    assert out.endswith("--budget 61 should be enough to decide\n")
    sent(*answers(ran.catalogue, speedup="undecided", facts=facts))
    main(["validate", "hydra", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["undecided"] is True and answer["budget_s"] == 61
    sent(*answers(ran.catalogue))
    main(["validate", "hydra", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["undecided"] is False and answer["budget_s"] is None
