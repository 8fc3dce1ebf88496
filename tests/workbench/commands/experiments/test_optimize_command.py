"""``workbench optimize``: what it asks of the runner, answers, keeps and exits with."""

from __future__ import annotations

import json

import optimization_samples
import pytest
import wire_samples
from optimization_samples import RESULT

from sessions.storage import hdf5
from sessions.studies.optimization.words import newest
from workbench import presets, protocol
from workbench.cli import main


def answers(catalogue, **options) -> list[protocol.AnyMessage]:
    """Return the messages of a runner that optimizes."""
    messages = [catalogue, *wire_samples.begin(0.1, 0)]
    messages += list(optimization_samples.messages(0.3, **options))
    return [*messages, protocol.Finished(t_s=99.0, reason="done", steps=9)]


def test_goal_limits_budget_and_toggles_are_sent(ran, sent):
    messages = sent(*answers(ran.catalogue))
    arguments = ["--preset", "tiny", "--workload", "train", "--toggle", "adamw=fused"]
    arguments += ["--objective", "energy", "--memory-limit", "12.5", "--max-error", "0.01"]
    arguments += ["--budget", "2m", "--include", "precision, compile", "--region", "2"]
    assert main(["optimize", "hydra", *arguments, "--seed", "3", "--batch", "8, 16"]) == 0
    (command,) = (message for message in messages if isinstance(message, protocol.Optimize))
    assert command.base.toggles == {"adamw": "fused"} and command.base.workload == "train"
    assert (command.objective, command.budget_s) == ("energy", 120.0)
    assert (command.memory_limit, command.max_error) == (12.5 * 2**30, 0.01)
    assert (command.include, command.exclude) == (["precision", "compile"], [])
    assert (command.region, command.seed, command.batches) == (0.02, 3, [8, 16])
    assert protocol.decode_command(protocol.encode(command)) == command


def test_the_result_its_verdicts_and_what_was_not_tried_are_printed_and_saved(
    ran, sent, tmp_path, capsys
):
    sent(*answers(ran.catalogue))
    path, preset = tmp_path / "o.h5", tmp_path / "best.json"
    assert main(["optimize", "moe", "-o", str(path), "--save-preset", str(preset)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{RESULT}: 2.2") and "x faster (95 % interval" in out.splitlines()[0]
    assert "| precision=amp_bf16 | adds to all the others |" in out
    assert "| against the runner-up |" in out
    assert "| cuda_graphs=on | blocked | 0 | – | needs a CUDA GPU |" in out
    (wrong,) = (x for x in out.splitlines() if "rope_cache=shared" in x and "| WRONG |" in x)
    assert "wrong numbers: relative error 1" in wrong
    assert "Its longer build pays off after" in out and "Search complete: " in out
    assert out.splitlines()[-2].startswith("The result: --toggle adamw=fused --toggle compile")
    assert newest(hdf5.load(path)).facts["final"]
    ((title, toggles),) = presets.read(preset).items()
    assert title == "moe train: best configuration"
    assert toggles["precision"] == "amp_bf16" and toggles["checkpointing"] == "off"


def test_the_answer_for_programs_has_all_of_it(ran, sent, capsys):
    sent(*answers(ran.catalogue))
    assert main(["optimize", "moe", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["best"]["compile"] == "default" and data["complete"] is True
    assert [row["role"] for row in data["candidates"]].count("best") == 1
    kinds = {row["kind"] for row in data["effects"]}
    assert kinds == {"total", "runner-up", "without"}
    assert data["payoff_steps"] > 0


def test_a_start_that_nothing_beats_is_the_result(ran, sent, capsys):
    sent(*answers(ran.catalogue, gains=False))
    assert main(["optimize", "moe"]) == 0
    assert capsys.readouterr().out.startswith(
        "nothing was shown to be better than the start among "
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--budget", "ten"], "'ten' is not a time such as 90s, 10m or 1h"),
        (["--batch", "8,none"], "is not a list of batch sizes such as"),
        (["--budget", "0m"], "'0m' is not a time such as"),
        (["--budget", "9" * 400], "is not a time such as"),
        (["--batch", "9" * 5000], "is not a list of batch sizes such as"),
        (["--include", "triton", "--exclude", "compile"], "not allowed with argument"),
        (["--objective", "speed"], "invalid choice: 'speed'"),
    ],
)
def test_arguments_that_mean_nothing_are_a_mistake(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as ended:
        main(["optimize", "moe", *arguments])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_mistake_of_the_runner_is_one_sentence(ran, sent, capsys):
    failure = protocol.Failure(kind="mistake", sentence="toggle window makes another model")
    sent(ran.catalogue, failure, protocol.Finished(reason="failed", steps=0))
    assert main(["optimize", "hydra", "--include", "window"]) == 2
    assert "toggle window makes another model" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["none/best.json", "best.txt"])
def test_a_preset_that_cannot_be_written_is_refused_before_the_search(
    name, ran, sent, tmp_path, capsys
):
    messages = sent(*answers(ran.catalogue))
    preset = str(tmp_path / name)
    assert main(["optimize", "moe", "--save-preset", preset]) == 2
    assert preset in capsys.readouterr().err and not messages
