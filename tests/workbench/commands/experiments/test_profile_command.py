"""``workbench profile``: what it asks of the runner, prints, writes and keeps."""

from __future__ import annotations

import json

import profile_samples
import pytest
import wire_samples

from sessions.storage import hdf5
from sessions.studies import breakdown
from workbench import protocol
from workbench.cli import main


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def answers(catalogue, count=1):
    """Return the messages of a profile: a segment and a study for each configuration."""
    messages = [catalogue]
    for index in range(count):
        study = profile_samples.study(blocks=2, seed=index, faster=0.8**index)
        messages += wire_samples.begin(0.1 + index, index)
        messages.append(
            protocol.StudyStarted(
                t_s=0.5 + index,
                index=index,
                kind=study.kind,
                title=study.title,
                request=study.request,
            )
        )
        for name, table in study.tables.items():
            every = 20 if name == "memory" else 1  # all of it would be no argument of a program
            columns = {column: values[::every].tolist() for column, values in table.items()}
            messages.append(
                protocol.StudyRows(t_s=0.6 + index, study=index, table=name, columns=columns)
            )
        messages.append(protocol.StudyFacts(t_s=0.7 + index, study=index, facts=study.facts))
    return [*messages, protocol.Finished(t_s=9.0, reason="done", steps=9)]


def profile_command(messages) -> protocol.Profile:
    (command,) = (message for message in messages if isinstance(message, protocol.Profile))
    return command


def test_one_configuration_is_profiled_and_told_in_tables(ran, sent, tmp_path, capsys):
    messages = sent(*answers(ran.catalogue))
    file = tmp_path / "kept.h5"
    arguments = ["--preset", "tiny", "--workload", "train", "--steps", "5", "-o", str(file)]
    assert main(["profile", "hydra", *arguments]) == 0
    command = profile_command(messages)
    (configuration,) = command.configurations
    assert (configuration.preset, configuration.workload, command.steps) == ("tiny", "train", 5)
    assert command.traces == []
    out = capsys.readouterr().out
    assert "Launch-bound: in 18 % of the step" in out
    for title in ("Operator classes", "Kernels", "Modules", "Memory by role"):
        assert f"### {title}: hydra base train: defaults" in out
    assert "| . . . blocks.0 |" in out and "By module" not in out
    assert [profile.title for profile in breakdown.profiles(hdf5.load(file))] == [
        "hydra base train: defaults"
    ]


def test_two_arms_are_profiled_together_and_set_against_each_other(ran, sent, tmp_path, capsys):
    messages = sent(*answers(ran.catalogue, 2))
    trace = tmp_path / "step.json.gz"
    arguments = ["--a", "precision=bf16", "--b", "checkpointing=full", "--trace", str(trace)]
    assert main(["profile", "hydra", "--toggle", "triton=off", *arguments]) == 0
    command = profile_command(messages)
    assert [arm.toggles for arm in command.configurations] == [
        {"triton": "off", "precision": "bf16"},
        {"triton": "off", "checkpointing": "full"},
    ]
    names = [str(tmp_path / f"step-{side}.json.gz") for side in "ab"]
    assert command.traces == names
    out = capsys.readouterr().out
    assert "### By module: A hydra base train" in out and "### Memory at the peaks" in out


def test_the_result_is_there_for_programs(ran, sent, capsys):
    sent(*answers(ran.catalogue, 2))
    assert main(["profile", "hydra", "--b", "triton=on", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    first, second = answer["profiles"]
    assert first["us_by_module"]["(model)"] > second["us_by_module"]["(model)"]
    assert first["idle_share"] == pytest.approx(1 - 1 / 1.22)
    assert first["tables"]["peak"]["estimate"][4] is None
    assert answer["difference"][0]["module"] == "(model)"
    assert answer["difference"][0]["difference_us"] < 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--trace", "trace.html"], "trace.html: unknown suffix '.html'; expected one of .json"),
        (["--trace", "/nowhere/t.json"], "there is no folder /nowhere"),
        (["--steps", "0"], "'0' is not a whole number above 0"),
        (["--b", "precision=bf17"], "toggle precision: unknown option 'bf17'"),
    ],
)
def test_what_cannot_be_asked_is_a_mistake(ran, sent, capsys, arguments, sentence):
    sent(ran.catalogue)
    try:
        code = main(["profile", "hydra", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert sentence in capsys.readouterr().err
