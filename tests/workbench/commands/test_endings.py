"""However a command's run ends, its exit code says so, and ``--json`` answers with one object."""

from __future__ import annotations

import json

import pytest

from workbench import protocol
from workbench.cli import main

COMMANDS = {
    "run": ["run", "hydra"],
    "ab": ["ab", "hydra"],
    "calibrate": ["calibrate"],
    "ceilings": ["ceilings", "--measure"],
    "attribute": ["attribute", "hydra", "--toggles", "adamw=fused"],
    "sweep": ["sweep", "hydra", "--over", "settings.batch=1,2"],
    "profile": ["profile", "hydra"],
    "validate": ["validate", "hydra"],
    "bench": ["bench"],
}
SHARED = {"reason", "file", "failures", "warnings", "environment"}
each = pytest.mark.parametrize("name", COMMANDS)


@each
def test_a_run_that_failed_is_1_with_its_reason_for_people_and_programs(name, ran, sent, capsys):
    failed = protocol.Failure(kind="model", sentence="It burst.", fix="Use less.")
    sent(ran.catalogue, failed, protocol.Finished(reason="failed", steps=0))
    assert main([*COMMANDS[name], "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "It burst. Use less.\n"
    told = json.loads(printed.out)
    assert told.keys() >= SHARED and (told["reason"], told["file"]) == ("failed", None)
    assert told["failures"][0]["sentence"] == "It burst."
    assert told["environment"] == ran.catalogue.environment


@each
def test_a_runner_that_died_is_1_with_its_last_words(name, sent, capsys):
    sent(then="sys.exit('no module named torch')")
    assert main([*COMMANDS[name], "--json"]) == 1
    printed = capsys.readouterr()
    assert "no module named torch" in printed.err and "Traceback" not in printed.err
    assert json.loads(printed.out)["reason"] == "died"


@each
def test_what_cannot_be_asked_is_2_with_one_sentence_and_no_result(name, ran, sent, capsys):
    mistake = protocol.Failure(kind="mistake", sentence="budget_s = 0 is outside of 0 to 9")
    sent(ran.catalogue, mistake, protocol.Finished(reason="failed", steps=0))
    assert main([*COMMANDS[name], "--json"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"workbench {name}: {mistake.sentence}\n")


@each
def test_what_was_interrupted_is_130_and_still_answers(name, ran, sent, capsys):
    sent(ran.catalogue, protocol.Finished(reason="cancelled", steps=0))
    assert main([*COMMANDS[name], "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["reason"] == "cancelled"
