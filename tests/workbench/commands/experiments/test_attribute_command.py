"""``workbench attribute``: what it asks of the runner, answers, keeps and exits with."""

from __future__ import annotations

import json

import attribution_samples
import pytest
import wire_samples
from sent_commands import only

from sessions.model import Configuration
from sessions.storage import hdf5
from sessions.studies.attribution.words import newest
from workbench import protocol
from workbench.cli import main

ARGUMENTS = ("--toggles", "precision=amp_bf16, checkpointing=full")


def answers(catalogue, wrong=False, **options):
    """Return the messages of a runner that attributes."""
    messages = [catalogue, *wire_samples.begin(0.1, 0)]
    messages += list(attribution_samples.messages(0.3, **options))
    for message in messages:
        if wrong and isinstance(message, protocol.StudyRows) and message.table == "arms":
            message.columns["wrong"][1] = 1.0
    return [*messages, protocol.Finished(t_s=99.0, reason="done", steps=9)]


def test_the_toggles_are_asked_for_in_their_order_upon_the_base(ran, sent, capsys):
    commands = sent(*answers(ran.catalogue))
    arguments = ["--preset", "tiny", "--workload", "train", "--toggle", "adamw=fused"]
    arguments += ["--toggles", "precision=amp_bf16,checkpointing=full,compile=default"]
    arguments += ["--mode", "leave-one-out", "--budget", "7", "--region", "2", "--seed", "3"]
    assert main(["attribute", "hydra", *arguments]) == 0
    command = only(commands, protocol.Attribute)
    assert (command.base.preset, command.base.workload) == ("tiny", "train")
    assert command.base.toggles == {"adamw": "fused"}
    assert list(command.toggles.items()) == [
        ("precision", "amp_bf16"),
        ("checkpointing", "full"),
        ("compile", "default"),
    ]
    assert (command.mode, command.budget_s) == ("leave-one-out", 7.0)
    assert (command.region, command.seed) == (0.02, 3)


def test_arms_effects_and_what_was_blocked_are_told_and_saved(ran, sent, tmp_path, capsys):
    sent(*answers(ran.catalogue, blocked={"cuda_graphs": "needs a CUDA GPU"}, short=[2]))
    path = tmp_path / "attributed.h5"
    assert main(["attribute", "moe", *ARGUMENTS, "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("all together: 2.35x faster (95 % interval 2.33 to 2.38)")
    assert "| + checkpointing=full | 13." in out and "| right |" in out
    (rung,) = (line for line in out.splitlines() if line.startswith("| + precision=amp"))
    assert "–" in rung and "out of memory: Out of memory: 3.0 GiB" in rung
    (joint,) = (line for line in out.splitlines() if "bf16 + checkpointing=full | adds" in line)
    assert "| FASTER |" in joint and "0.64" in joint
    assert "| cuda_graphs=on | blocked | – | – | – | not measured |" in out
    assert "16 rounds in 8 s." in out
    assert "compile=default: no effect: the model ran eagerly (base, + compile=default" in out
    assert newest(hdf5.load(path)).facts["rounds"] == 16


def test_the_answer_for_programs_has_all_of_it(ran, sent, capsys):
    sent(*answers(ran.catalogue, mode="factorial"))
    assert main(["attribute", "moe", *ARGUMENTS, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["mode"] == "factorial" and answer["rounds"] == 16 and answer["wrong"] == []
    assert len(answer["arms"]) == 16 and answer["arms"][0]["title"] == "base"
    (share,) = (
        row
        for row in answer["effects"]
        if (row["quantity"], row["name"]) == ("time", "compile=default")
    )
    assert share["kind"] == "share" and share["low"] < 0.66 < share["high"]
    memory = [row for row in answer["effects"] if row["quantity"] == "memory"]
    assert all(row["low"] is None for row in memory)


def test_wrong_numbers_are_said_first_and_exit_with_1(ran, sent, capsys):
    sent(*answers(ran.catalogue, wrong=True))
    assert main(["attribute", "moe", *ARGUMENTS]) == 1
    assert capsys.readouterr().out.startswith("+ compile=default computed wrong numbers; all")


def test_what_could_not_be_measured_at_all_exits_with_1(ran, sent, capsys):
    sent(*answers(ran.catalogue, short=[0, 1, 2, 3, 4]))
    assert main(["attribute", "moe", *ARGUMENTS]) == 1
    assert "not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("toggles", "sentence"),
    [
        ("turbo=on", "unknown toggle 'turbo'; expected one of "),
        ("precision=fp7", "toggle precision: unknown option 'fp7'; expected one of fp32,"),
        (",", "--toggles: name at least one, as NAME=OPTION"),
        (
            "precision=bf16,triton=on,precision=fp16",
            "--toggles: precision is named twice; a toggle",
        ),
    ],
)
def test_toggles_that_cannot_be_are_a_mistake(ran, sent, capsys, toggles, sentence):
    commands = sent(ran.catalogue)
    assert main(["attribute", "hydra", "--toggles", toggles]) == 2
    assert sentence in capsys.readouterr().err
    assert not any(isinstance(command, protocol.Attribute) for command in commands)


def test_a_mistake_of_the_runner_is_one_sentence(ran, sent, capsys):
    failure = protocol.Failure(kind="mistake", sentence="toggle adamw: the base has it already")
    sent(ran.catalogue, failure, protocol.Finished(reason="failed", steps=0))
    assert main(["attribute", "hydra", *ARGUMENTS]) == 2
    assert "the base has it already" in capsys.readouterr().err


def test_the_command_survives_the_wire():
    command = protocol.Attribute(
        base=Configuration(family="moe", preset="tiny"),
        toggles={"b": "on", "a": "on"},
    )
    back = protocol.decode_command(protocol.encode(command))
    assert back == command and list(back.toggles) == ["b", "a"]
