"""``workbench scale``: what it asks the runner for, and the table that it answers."""

from __future__ import annotations

import json
import shlex

import pytest
import scaling_samples
from sent_commands import only

from sessions.model import Configuration
from sessions.reproduction import order_arguments
from sessions.storage import hdf5
from sessions.studies.rank_scaling import scalings
from workbench import protocol
from workbench.cli import main

COMMAND = ("scale", "hydra", "--preset", "tiny", "--set", "batch=8", "--toggle", "adamw=foreach")
OPTIONS = ("--ranks", "1,2,4", "--kinds", "data,fsdp+tensor", "--mode", "weak", "--budget", "3",
           "--with", "micro_batches=4", "--seed", "7")  # fmt: skip


def replies(catalogue, reason: str = "done", **options) -> list[protocol.Message]:
    """Return the messages of a runner that has measured."""
    segment = protocol.SegmentStarted(
        index=0, configuration=Configuration(family="hydra", preset="tiny"), label="A"
    )
    ended = protocol.Finished(reason=reason, steps=1)
    return [catalogue, segment, *scaling_samples.messages(**options), ended]


def test_the_runner_gets_what_the_arguments_say(ran, sent):
    commands = sent(*replies(ran.catalogue))
    assert main([*COMMAND, *OPTIONS]) == 0
    command = only(commands, protocol.Scale)
    assert command.base.workload == "train" and command.base.toggles == {"adamw": "foreach"}
    assert (command.ranks, command.kinds) == ([1, 2, 4], ["data", "fsdp+tensor"])
    assert (command.mode, command.budget_s, command.seed) == ("weak", 3.0, 7)
    assert command.toggles == {"micro_batches": "4"} and command.lanes


def test_the_table_has_efficiencies_and_the_ranks_and_the_file_keeps_them(
    ran, sent, capsys, tmp_path
):
    sent(*replies(ran.catalogue))
    assert main([*COMMAND, "-o", str(tmp_path / "s.h5")]) == 0
    out = capsys.readouterr().out
    assert "strong scaling efficiency of data, 4 ranks: 0.909 (0.891 to 0.928)" in out
    assert "needs 8 GPUs; this machine has 4" in out and "node-b" in out
    assert len(scalings(hdf5.load(tmp_path / "s.h5"))) == 1


@pytest.mark.parametrize(
    ("reason", "wrong", "code"), [("cancelled", False, 130), ("done", True, 1)]
)
def test_exit_codes_tell_interruptions_and_wrong_numbers(ran, sent, capsys, reason, wrong, code):
    sent(*replies(ran.catalogue, reason, wrong=wrong))
    assert main([*COMMAND, "--json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert len(data["efficiencies"]) == 6 and len(data["ranks"]) == 12
    assert bool(data["wrong"]) == wrong


@pytest.mark.parametrize("words", [("--ranks", "two"), ("--ranks", "0,2"), ("--mode", "both")])
def test_impossible_arguments_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*COMMAND, *words])
    assert ended.value.code == 2 and words[0] in capsys.readouterr().err


def test_a_session_repeats_the_command(ran, sent, tmp_path):
    commands = sent(*replies(ran.catalogue))
    assert main([*COMMAND, *OPTIONS, "--no-lanes"]) == 0
    first = only(commands, protocol.Scale)
    words = order_arguments.order_words(
        json.loads(protocol.encode(first)), str(tmp_path / "again.h5")
    )
    assert shlex.join(words).startswith("scale hydra")
    repeated = sent(*replies(ran.catalogue))
    assert main(words) == 0
    (second,) = [command for command in repeated if isinstance(command, protocol.Scale)]
    assert second == first
