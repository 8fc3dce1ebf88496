"""However a command's run ends, its exit code says so, and ``--json`` answers with one object."""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
import sys

import pytest
from hang_limit import HANG_S
from interrupts import press_ctrl_c, when_recorded

from sessions.model import Ceilings
from workbench import commands, protocol
from workbench.cli import main
from workbench.commands import onnx

COMMANDS = {
    "run": ["run", "hydra"],
    "ab": ["ab", "hydra"],
    "calibrate": ["calibrate"],
    "ceilings": ["ceilings", "--measure"],
    "attribute": ["attribute", "hydra", "--toggles", "adamw=fused"],
    "optimize": ["optimize", "hydra"],
    "sweep": ["sweep", "hydra", "--over", "settings.batch=1,2"],
    "profile": ["profile", "hydra"],
    "validate": ["validate", "hydra"],
    "bench": ["bench"],
}
SHARED = {"reason", "file", "failures", "warnings", "environment"}
each_command = pytest.mark.parametrize("name", COMMANDS)


@each_command
def test_a_run_that_failed_is_1_with_its_reason_for_people_and_programs(name, ran, sent, capsys):
    failed = protocol.Failure(kind="model", sentence="It burst.", fix="Use less.")
    sent(ran.catalogue, failed, protocol.Finished(reason="failed", steps=0))
    assert main([*COMMANDS[name], "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "It burst. Use less.\n"
    answer = json.loads(printed.out)
    assert answer.keys() >= SHARED and (answer["reason"], answer["file"]) == ("failed", None)
    assert answer["failures"][0]["sentence"] == "It burst."
    assert answer["environment"] == ran.catalogue.environment


def test_a_failure_that_sends_a_person_to_the_log_has_it_below(ran, sent, capsys):
    detail = 'File "net.py", line 7, in forward\nValueError: x\n'
    for fix in ("Correct the file and run again. The log has the traceback.", "Use less."):
        failed = protocol.Failure(kind="model", sentence="It burst.", fix=fix, detail=detail)
        sent(ran.catalogue, failed, protocol.Finished(reason="failed", steps=0))
        assert main(["run", "hydra"]) == 1
        errors = capsys.readouterr().err.splitlines()
        assert errors[0] == f"It burst. {fix}"
        log = ["The log:", 'File "net.py", line 7, in forward', "ValueError: x"]
        assert errors[1:] == (log if "log" in fix else [])


def test_a_rank_that_failed_shows_its_report_and_the_last_output_of_all_ranks(ran, sent, capsys):
    """Whatever the advice is: a rank that a signal ended has left nothing but its output."""
    failed = protocol.Failure(kind="ranks", sentence="It burst.", fix="Use less.", detail="On 1: x")
    sent(
        *(ran.catalogue, failed, failed, protocol.Finished(reason="failed", steps=0)),
        then="print('bad index 7', file=sys.stderr)\nsys.stdin.read()",
    )
    assert main(["run", "hydra"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[:3] == ["It burst. Use less.", "The log:", "On 1: x"]
    assert errors[-2:] == ["The last output of the runner and its ranks:", "bad index 7"]
    assert errors.count("bad index 7") == 1


@each_command
def test_a_runner_that_died_is_1_with_its_last_words(name, sent, capsys):
    sent(then="sys.exit('no module named torch')")
    assert main([*COMMANDS[name], "--json"]) == 1
    printed = capsys.readouterr()
    assert "no module named torch" in printed.err and "Traceback" not in printed.err
    assert json.loads(printed.out)["reason"] == "died"


@each_command
def test_what_cannot_be_asked_is_2_with_one_sentence_for_people_and_programs(
    name, ran, sent, capsys
):
    mistake = protocol.Failure(kind="mistake", sentence="budget_s = 0 is outside of 0 to 9")
    sent(ran.catalogue, mistake, protocol.Finished(reason="failed", steps=0))
    assert main([*COMMANDS[name], "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"workbench {name}: {mistake.sentence}\n"
    answer = json.loads(printed.out)
    assert answer == {
        "reason": "mistake",
        "failures": [{"kind": "mistake", "sentence": mistake.sentence}],
    }


@each_command
def test_a_line_that_cannot_be_read_is_2_and_answers_programs_too(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*COMMANDS[name], "--json", "--colour"])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"usage: workbench {name} ")
    (failure,) = json.loads(printed.out)["failures"]
    assert failure == {"kind": "mistake", "sentence": "unrecognized arguments: --colour"}
    with pytest.raises(SystemExit):
        main([*COMMANDS[name], "--colour"])
    assert capsys.readouterr().out == ""


@each_command
def test_what_was_interrupted_is_130_and_still_answers(name, ran, sent, capsys):
    sent(ran.catalogue, protocol.Finished(reason="cancelled", steps=0))
    assert main([*COMMANDS[name], "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["reason"] == "cancelled"


@each_command
def test_a_journal_that_cannot_be_written_ends_no_run_and_is_told_once(
    name, ran, sent, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")  # in which nobody can make a folder
    sent(ran.catalogue, protocol.Finished(reason="cancelled", steps=0))
    assert main([*COMMANDS[name], "--json"]) == 130
    printed = capsys.readouterr()
    errors = " ".join(printed.err.split())
    assert errors.count("The journal /dev/null/workbench/") == 1
    assert "Not a directory" in errors and "set XDG_STATE_HOME to a writable folder" in errors
    answer = json.loads(printed.out)
    assert (answer["reason"], answer["failures"]) == ("cancelled", [])
    assert len(answer["warnings"]) == 1 and "a crash would lose" in answer["warnings"][0]


def test_a_trace_or_state_that_could_not_be_written_is_1_and_what_was_measured_is_saved(
    ran, sent, tmp_path, capsys
):
    failed = protocol.Failure(kind="unwritten", sentence="The trace could not be written to /x.")
    begun = next(
        message for message in ran.messages if isinstance(message, protocol.SegmentStarted)
    )
    sent(ran.catalogue, begun, failed, protocol.Finished(reason="done", steps=9))
    output = tmp_path / "a.h5"
    assert main(["run", "hydra", "--json", "-o", str(output)]) == 1
    printed = capsys.readouterr()
    assert "The trace could not be written to /x." in printed.err and output.exists()
    assert json.loads(printed.out)["reason"] == "done"


def test_ceilings_that_were_not_measured_for_an_interruption_are_not_answered_with_older_ones(
    ran, sent, capsys
):
    older = protocol.CeilingsFound(
        ceilings=Ceilings(
            device="d", driver="1", torch="2", created=1.0, bytes_per_s=1e9, flops_per_s={}
        ),
        source="kept",
    )
    sent(ran.catalogue, older, protocol.Finished(reason="cancelled", steps=0))
    assert main(COMMANDS["ceilings"]) == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"calibrate", "ceilings"}))
def test_a_file_that_was_asked_for_is_told_of_however_little_was_measured(
    name, ran, sent, tmp_path, capsys
):
    output = tmp_path / "a.h5"
    ended = protocol.Finished(reason="cancelled", steps=0)
    sent(ran.catalogue, ended)
    assert main([*COMMANDS[name], "-o", str(output)]) == 130
    printed = capsys.readouterr()
    assert printed.err == f"Nothing was measured, so {output} was not written.\n"
    assert printed.out == "" and not output.exists()
    begun = next(
        message for message in ran.messages if isinstance(message, protocol.SegmentStarted)
    )
    if name != "bench":  # whose segments are kernels
        sent(ran.catalogue, begun, ended)
        assert main([*COMMANDS[name], "-o", str(output)]) == 130
        assert capsys.readouterr().out.splitlines()[-1] == f"saved {output}"
        assert output.exists()


def test_ctrl_c_before_a_line_is_read_is_130_without_a_traceback(monkeypatch, capsys):
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.cli._parser", pressed)
    assert main(["doctor", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["reason"] == "cancelled"
    assert main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")


# Those that follow no single run: a plan of several, another process, files

CLAIMS = ["reproduce", "moe", "--only", "torch.compile reduce-overhead", "--only"]
CLAIMS += ["inference ladder", "--json"]


def test_claims_that_a_failure_kept_from_being_measured_are_1_and_named(ran, sent, capsys):
    failed = protocol.Failure(kind="model", sentence="It burst.", fix="Use less.")
    sent(ran.catalogue, failed, protocol.Finished(reason="failed", steps=0))
    assert main(CLAIMS) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() >= SHARED and answer["failures"][0]["sentence"] == "It burst."
    reasons = [claim["reason"] for claim in answer["claims"] if claim["result"] == "not measured"]
    assert reasons and all("It burst." in reason for reason in reasons)


def test_claims_whose_runner_died_are_1_and_still_answered(sent, capsys):
    sent(then="sys.exit('no module named torch')")
    assert main(CLAIMS) == 1
    printed = capsys.readouterr()
    assert "no module named torch" in printed.err and "Traceback" not in printed.err
    assert json.loads(printed.out)["reason"] == "died"


def test_claims_that_were_interrupted_are_130_and_still_answered(ran, sent, monkeypatch, capsys):
    monkeypatch.setattr("workbench.client.runner_process.GRACE_S", 0.1)
    sent(ran.catalogue)
    press_ctrl_c(
        after=when_recorded(monkeypatch, lambda m: isinstance(m, protocol.Catalogue)),
    )
    assert main(CLAIMS) == 130
    answer = json.loads(capsys.readouterr().out)
    assert answer["reason"] == "cancelled"
    assert any("interrupted" in claim["reason"] for claim in answer["claims"])


def test_claims_go_on_without_a_journal_which_is_no_reason_of_theirs(
    ran, sent, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    sent(ran.catalogue, protocol.Finished(reason="done", steps=0))
    main(CLAIMS)
    answer = json.loads(capsys.readouterr().out)
    assert answer["failures"] == [] and len(answer["warnings"]) == 1
    assert not any("journal" in str(claim.get("reason")) for claim in answer["claims"])


def failing(*_, **__):
    return subprocess.CompletedProcess([], -9, "", "MemoryError: no room\n")


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("act", "code", "reason"), [(failing, 1, "failed"), (interrupted, 130, "cancelled")]
)
def test_an_export_to_onnx_answers_however_it_ends(
    act, code, reason, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(onnx, "_run_program", act)
    assert main(["onnx", "hydra", "-o", str(tmp_path / "a.onnx"), "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["reason"] == reason
    failed = ["no room" in failure["sentence"] for failure in answer["failures"]]
    assert failed == [True] * (code == 1)


READ = {
    "export": ["--table", "segments", "-o", "out.md"],
    "report": ["-o", "out.html"],
    "compare": ["{file}"],
    "info": [],
}


@pytest.mark.parametrize("name", READ)
def test_a_damaged_file_is_1_with_its_reason_for_people_and_programs(
    name, damaged, pair, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    more = [text.format(file=pair[1]) for text in READ[name]]
    assert main([name, str(damaged), *more, "--json"]) == 1
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["reason"] == "failed"
    assert printed.err == f"workbench {name}: {answer['failures'][0]['sentence']}\n"
    assert str(damaged) in printed.err


@pytest.mark.parametrize("name", ["export", "compare", "report"])
def test_reading_files_that_is_interrupted_is_130_and_still_answers(
    name, pair, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sessions.storage.hdf5.load", interrupted)
    more = [text.format(file=pair[1]) for text in READ[name]]
    assert main([name, str(pair[0]), *more, "--json"]) == 130
    assert json.loads(capsys.readouterr().out) == {"reason": "cancelled", "failures": []}


def test_an_export_answers_programs_with_what_it_wrote(pair, tmp_path, capsys):
    output = tmp_path / "out.csv"
    made = ["--plot", "ecdf", "-o", str(output), "--json"]
    assert main(["export", *map(str, pair), *made]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["file"] == str(output) and answer["bytes"] == output.stat().st_size > 0
    assert (answer["plot"], answer["table"]) == ("ecdf", None)
    assert answer["sessions"] == [str(path) for path in pair]


def test_every_command_answers_programs(capsys):
    modules = (module.name for module in pkgutil.iter_modules(commands.__path__))
    names = [name for name in modules if not name.startswith("_")]
    assert len(names) > 15
    for name in names:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        assert "--json" in capsys.readouterr().out, name


@pytest.mark.slow
def test_the_demo_that_is_interrupted_is_130_and_still_answers(tmp_path):
    environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "QT_QPA_PLATFORM": "offscreen"}
    demo = subprocess.Popen(
        [sys.executable, "-m", "workbench", "demo", "--json", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("Starting the runner"):
            break
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=HANG_S)
    answer = json.loads(out)
    assert (demo.returncode, answer["reason"], answer["files"]) == (130, "cancelled", [])
    assert "Traceback" not in err
