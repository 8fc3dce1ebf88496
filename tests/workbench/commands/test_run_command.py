"""``workbench run``: what it measures and saves, and what it answers to a mistake."""

from __future__ import annotations

import json
import os

import pytest
import synthetic
import wire_samples
from interrupts import press_ctrl_c, when_recorded
from sent_commands import only

from sessions.columns import row_count
from sessions.storage import hdf5
from sessions.verdicts.comparison import compare_segments
from workbench import protocol, state_folder
from workbench.cli import main
from workbench.client.journal import Journal
from workbench.commands.run import summary


def test_a_run_ends_with_0_its_json_and_its_file(ran):
    assert ran.code == 0
    assert ran.err == ""  # no bar where nobody looks
    result = json.loads(ran.out)
    assert (result["reason"], result["file"]) == ("done", str(ran.path))
    assert result["failures"] == []
    assert result["environment"].keys() >= {"torch", "cpu", "python"}
    (segment,) = result["segments"]
    assert segment["steps"] == ran.steps
    assert segment["clock"] == "host"
    assert segment["ledger"]["parameters"] > 0
    assert [name for name, *_ in segment["phases"]][:2] == ["build", "warm-up"]
    chosen, fused = segment["evidence"]
    assert (chosen["toggle"], chosen["requested"]) == ("attention", "auto")
    assert "flash ratio 1.00" in chosen["text"] and segment["ledger"]["attention_fallbacks"] == 0
    assert (fused["toggle"], fused["status"]) == ("adamw", "effective")
    configuration = segment["configuration"]
    assert configuration["model"] == {"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1}
    assert configuration["settings"] == {"batch": 1, "sequence": 16}
    assert (configuration["seed"], configuration["toggles"]["adamw"]) == (7, "fused")


def test_the_peak_for_programs_is_that_of_steady_steps_as_in_the_tables():
    """The first step's is higher: kernels are tuned in it."""
    session = synthetic.gpu_session()
    segment = session.segments[0]
    segment.steps.append({"t_s": [0.0], "wall_ms": [9.0], "phase": [2], "peak": [1e15]})
    (arm,), _ = compare_segments([(session, segment)], ["a"])
    assert summary(segment)["peak_bytes"] == arm.peak_bytes < 1e15


def test_the_saved_session_is_what_was_measured_and_no_journal_is_left(ran):
    session = hdf5.load(ran.path)
    assert session.title == "hydra tiny train"
    (segment,) = session.segments
    assert row_count(segment.steps) == ran.steps
    assert (segment.steps["wall_ms"][1:] > 0).all()
    names = {path.name for path in (ran.state / "workbench").iterdir()}
    assert names == {"account.key"}  # with which the file is sealed


MISTAKES = {
    "unknown family 'hydro'; expected one of hydra": ["hydro"],
    "unknown workload 'dream'; expected one of decode, forward, generate, prefill, train": [
        *("hydra", "--workload", "dream")
    ],
    "unknown toggle 'turbo'; expected one of ": [
        "hydra",
        "--toggle",
        "turbo",
    ],
    "toggle precision: unknown option 'fp7'; expected one of fp32, tf32,": [
        *("hydra", "--toggle", "precision=fp7")
    ],
    "--toggle precision: name an option, one of fp32, tf32,": ["hydra", "--toggle", "precision"],
    "--set: unknown field 'width'; expected one of vocabulary,": ["hydra", "--set", "width=3"],
    "--set dim: expected FIELD=VALUE": ["hydra", "--set", "dim"],
    "--set dim=wide: expected a whole number": ["hydra", "--set", "dim=wide"],
    "--set mlp_ratio=x: expected a number": ["hydra", "--set", "mlp_ratio=x"],
    "--set mlp_ratio=nan: expected a number": ["hydra", "--set", "mlp_ratio=nan"],
    "--set mlp_ratio=-1e999: expected a number": ["hydra", "--set", "mlp_ratio=-1e999"],
    "--set tie_embeddings=1: expected true or false": ["hydra", "--set", "tie_embeddings=1"],
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_wrong_name_or_value_is_answered_with_what_is_allowed(sentence, ran, sent, capsys):
    commands = sent(ran.catalogue)
    assert main(["run", *MISTAKES[sentence]]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"workbench run: {sentence}")
    assert not any(isinstance(command, protocol.Start) for command in commands)
    assert not list(state_folder.path().iterdir())


@pytest.mark.parametrize(
    ("length", "sentence"),
    [
        (["--steps", "0"], "'0' is not a whole number above 0"),
        (["--steps", "1.5"], "'1.5' is not a whole number above 0"),
        (["--seconds", "nan"], "'nan' is not a number above 0"),
        (["--seconds", "-1"], "'-1' is not a number above 0"),
        (["--steps", "1", "--seconds", "1"], "not allowed with argument --steps"),
    ],
)
def test_a_length_that_is_none_is_refused(length, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "hydra", *length])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_what_the_runner_calls_a_mistake_is_one(ran, sent, capsys):
    mistake = protocol.Failure(kind="mistake", sentence="setting batch = 0 is outside of 1 to 9")
    commands = sent(ran.catalogue, mistake, protocol.Finished(reason="failed", steps=0))
    assert main(["run", "hydra", "--toggle", "cuda_graphs", "--set", "batch=0"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"workbench run: {mistake.sentence}\n")
    start = only(commands, protocol.Start)
    assert start.configuration.toggles == {"cuda_graphs": "on"}  # of two options, the other one
    assert (start.steps, start.seconds) == (None, 10.0)
    assert start.configuration.preset == ran.catalogue.families[0].default_preset


def test_decode_states_are_asked_for_by_absolute_paths(ran, sent, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    note = protocol.Note(kind="info", text="saved the decode state after 9 tokens to b")
    commands = sent(ran.catalogue, note, protocol.Finished(reason="done", steps=0))
    states = ["--load-state", "a", "--save-state", "b"]
    assert main(["run", "hydra", "--workload", "generate", *states]) == 0
    start = only(commands, protocol.Start)
    assert start.load_state == str(tmp_path / "a") and start.save_state == str(tmp_path / "b")
    assert note.text in capsys.readouterr().out
    assert main(["run", "hydra", "--save-state", "none/b"]) == 2
    assert "there is no folder none to save in" in capsys.readouterr().err


def test_a_run_that_fails_is_1_and_says_why(ran, sent, capsys):
    failed = protocol.Failure(kind="model", sentence="It burst.", fix="Use less.", detail="Trace")
    sent(ran.catalogue, failed, protocol.Finished(reason="failed", steps=0))
    assert main(["run", "hydra", "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "It burst. Use less.\n"
    result = json.loads(printed.out)
    assert (result["reason"], result["file"], result["segments"]) == ("failed", None, [])
    assert result["failures"][0]["detail"] == "Trace"


def test_what_was_generated_is_printed_with_what_its_prompts_took(ran, sent, capsys):
    start = wire_samples.begin(1.0, 0)
    start[0].configuration.settings["sequence"] = 12
    facts = {"prefill_ms": 3.5, "prefills": 2}
    sent(
        ran.catalogue,
        *start,
        protocol.Generated(segment=0, sequence=0, start=0, prompt="Once upon", text=" a ti"),
        protocol.Generated(segment=0, sequence=0, start=5, text="me"),
        protocol.Facts(segment=0, ledger=facts),
        protocol.Finished(reason="done", steps=7),
    )
    assert main(["run", "hydra"]) == 0
    assert capsys.readouterr().out.endswith(
        "\nprefill: 3.5 ms for 12 tokens (median of 2)\n\n"
        "prompt:\nOnce upon\n\ngenerated:\n a time\n"
    )


def test_a_runner_that_does_not_start_is_1_with_its_last_words(sent, capsys):
    sent(then="sys.exit('no module named torch')")
    assert main(["run", "hydra"]) == 1
    err = capsys.readouterr().err
    assert "ended with exit code 1 before a runner answered" in err
    assert "no module named torch" in err and "Traceback" not in err


def test_what_was_measured_before_the_runner_died_is_saved(ran, sent, tmp_path, capsys):
    sent(ran.catalogue, *wire_samples.stream()[1:-2], then="os.kill(os.getpid(), 9)")
    assert main(["run", "hydra", "-o", str(tmp_path / "a.h5")]) == 1
    assert "SIGKILL" in capsys.readouterr().err
    assert len(hdf5.load(tmp_path / "a.h5").segments) == 3


def test_a_runner_that_died_leaves_a_journal_where_no_file_was_asked_for(
    ran, sent, tmp_path, capsys
):
    sent(ran.catalogue, *wire_samples.stream()[1:-2], then="os.kill(os.getpid(), 9)")
    assert main(["run", "hydra"]) == 1
    left = capsys.readouterr().err.strip().rpartition("workbench recover ")[2]
    assert main(["recover", left, "-o", str(tmp_path / "a.h5")]) == 0
    assert len(hdf5.load(tmp_path / "a.h5").segments) == 3


def begins_the_last_segment(message: protocol.AnyMessage) -> bool:
    return isinstance(message, protocol.SegmentStarted) and message.index == 2


def test_ctrl_c_is_130_also_where_the_runner_had_to_be_ended_by_force(
    ran, sent, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("workbench.client.runner_process.GRACE_S", 0.1)
    sent(ran.catalogue, *wire_samples.stream()[1:-2])
    press_ctrl_c(after=when_recorded(monkeypatch, begins_the_last_segment))
    assert main(["run", "hydra", "--json"]) == 130
    printed = capsys.readouterr()
    assert json.loads(printed.out)["reason"] == "cancelled"
    left = printed.err.strip().rpartition("workbench recover ")[2]
    assert main(["recover", left, "-o", str(tmp_path / "a.h5")]) == 0
    assert len(hdf5.load(tmp_path / "a.h5").segments) == 3


def test_ctrl_c_is_130_and_keeps_what_was_measured(ran, sent, tmp_path, monkeypatch, capsys):
    end = protocol.encode(protocol.Finished(reason="cancelled", steps=60))
    waits = f"sys.stdin.readline(), sys.stdin.readline(); os.write(1, {end!r}); sys.stdin.read()"
    sent(ran.catalogue, *wire_samples.stream()[1:-2], then=waits)
    press_ctrl_c(after=when_recorded(monkeypatch, begins_the_last_segment))
    assert main(["run", "hydra", "-o", str(tmp_path / "a.h5")]) == 130
    assert len(hdf5.load(tmp_path / "a.h5").segments) == 3
    assert "saved" in capsys.readouterr().out


def test_a_place_to_save_is_checked_before_a_runner_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("workbench.client.headless.run", lambda *_, **__: pytest.fail("it ran"))
    for path, why in ((tmp_path / "no" / "a.h5", "there is no folder"), (tmp_path, "is a folder")):
        assert main(["run", "hydra", "-o", str(path)]) == 2
        assert why in capsys.readouterr().err


def test_what_cannot_be_saved_is_kept_and_the_answer_says_how_to_get_it(
    ran, sent, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "a.h5"
    sent(ran.catalogue, *wire_samples.stream()[1:])
    monkeypatch.setattr("sessions.storage.hdf5.image", lambda *_: memoryview(b""))
    monkeypatch.setattr("pathlib.Path.open", _full(path.parent))
    assert main(["run", "hydra", "-o", str(path)]) == 1
    err = capsys.readouterr().err
    monkeypatch.undo()
    assert "No space left on device" in err
    left = err.strip().rpartition("workbench recover ")[2]
    assert main(["recover", left, "-o", str(path)]) == 0
    assert len(hdf5.load(path).segments) == 3


def _full(folder):
    """``Path.open`` on a machine whose disk under ``folder`` is full, but for the journal's."""
    really = type(folder).open

    def opened(path, *arguments, **options):
        if path.name.endswith(".partial"):
            raise OSError(28, os.strerror(28))
        return really(path, *arguments, **options)

    return opened


def test_a_recovered_journal_is_the_session_of_the_run(ran, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    journal = Journal()
    for message in ran.messages:
        journal.append(protocol.encode(message))
    journal.close()
    assert main(["recover"]) == 0
    assert capsys.readouterr().out == (
        f"recovered 1 segment, {ran.steps} steps: {journal.path.stem}.h5\n"
    )
    wire_samples.assert_same(hdf5.load(f"{journal.path.stem}.h5"), hdf5.load(ran.path))
    assert main(["recover"]) == 2  # there is no other
    assert f"no journal of an unsaved session in {state_folder.path()}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ledger", "expected", "code"),
    [
        ({"numbers": "as expected", "numbers_right": True}, "numbers right: as expected", 0),
        ({"numbers": "far off", "numbers_right": False}, "numbers WRONG: far off", 1),
        ({"numbers": "not checked: why"}, "numbers unknown: not checked: why", 0),
    ],
)
def test_wrong_numbers_exit_with_1_where_they_were_asked_for(
    ran, sent, capsys, ledger, expected, code
):
    facts = protocol.Facts(segment=0, ledger=ledger)
    messages = [
        *wire_samples.begin(0.1, 0),
        facts,
        protocol.Finished(t_s=9.0, reason="done", steps=9),
    ]
    commands = sent(ran.catalogue, *messages)
    assert main(["run", "hydra", "--check"]) == code
    start = only(commands, protocol.Start)
    assert start.check == "last" and expected in capsys.readouterr().out


def test_ctrl_c_without_a_file_tells_where_what_was_measured_is_kept(ran, sent, tmp_path, capsys):
    cancelled = protocol.Finished(reason="cancelled", steps=60)
    sent(ran.catalogue, *wire_samples.stream()[1:-2], cancelled)
    assert main(["run", "hydra"]) == 130
    left = capsys.readouterr().err.strip().rpartition("workbench recover ")[2]
    assert main(["recover", left, "-o", str(tmp_path / "a.h5")]) == 0
    assert len(hdf5.load(tmp_path / "a.h5").segments) == 3


@pytest.mark.parametrize("share", ["half", "nan", "0.9"])
def test_a_share_is_answered_with_those_that_are_allowed(share, capsys):
    with pytest.raises(SystemExit):
        main(["run", "hydra", "--pairing-share", share])
    assert f"'{share}': expected a number from 0 to 0.5" in capsys.readouterr().err
