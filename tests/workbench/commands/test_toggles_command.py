"""``workbench toggles``: every usable option is listed, every blocked one has its reason."""

from __future__ import annotations

import json

import pytest

from workbench import protocol
from workbench.cli import main
from workbench.client.runner_process import Runner


@pytest.fixture(scope="module")
def asked_again():
    """Yield a stand-in for ``Runner``; all that are made ask the same real runner."""
    runner = Runner()
    messages = iter(runner.messages().__next__, None)  # goes on after a loop that was left
    catalogue = next(messages)

    class AskedAgain:
        def messages(self):
            yield catalogue
            yield from messages

        def send(self, command: protocol.Command) -> bool:
            return runner.send(command)

        def close(self) -> None:
            """Leave the runner to the next one."""

    yield AskedAgain
    runner.close()


@pytest.fixture
def same_runner(asked_again, monkeypatch):
    """Let the command ask the runner of the module; to start another one takes seconds."""
    monkeypatch.setattr("workbench.commands._headless.Runner", asked_again)


@pytest.mark.usefixtures("same_runner")
def test_usable_and_blocked_options_of_a_family_are_listed(capsys):
    assert main(["toggles", "hydra", "--preset", "tiny", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["reason"] == "done"
    toggles = {toggle["name"]: toggle for toggle in listed["toggles"]}
    assert "adaptive_rank" not in toggles  # of another family
    assert "training" in toggles["checkpointing"]["blocked"]["full"]["fix"]
    assert main(["toggles", "hydra", "--preset", "tiny"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith(f"hydra tiny forward: {len(toggles)} toggles")
    split = lines.index("Blocked here")
    usable, blocked = lines[:split], " ".join(lines[split:])
    for toggle in toggles.values():
        (line,) = (line for line in usable if line.split()[:1] == [toggle["name"]])
        names = line.removeprefix(f"  {toggle['name']}").strip().split(", ")
        assert names[0] == toggle["default"]
        options = {option["name"] for option in toggle["options"]}
        assert set(names) == options - toggle["blocked"].keys()
        words = [word for word in blocked.split() if word.startswith(f"{toggle['name']}=")]
        shown = [option for word in words for option in word.partition("=")[2].split(",")]
        assert set(shown) == toggle["blocked"].keys()


@pytest.mark.usefixtures("same_runner")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["hydra", "--preset", "tiny", "--set", "n_heads=3"], "n_heads"),
     (["--model", "nowhere.py"], "cannot read"),
     (["--model", "broken.py"], "line 1: '(' was never closed; correct the file"),
     (["--model", "other.py"], "has no function build(); it must return")],
)  # fmt: skip
def test_a_model_that_cannot_be_built_has_a_reason_instead_of_toggles(
    arguments, reason, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("x = (\n")
    (tmp_path / "other.py").write_text("def other(): pass\n")
    assert main(["toggles", *arguments]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err and not printed.out


OWN = """
import signal
import torch
from torch import nn
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
def build():
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # only the main thread may
    return nn.Sequential(nn.Conv1d(4, 4, 1), Norm()), torch.zeros(1, 4, 8)
def fails():
    raise OSError("no data here")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a model without linear layers, whose norm can be replaced."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)


@pytest.mark.usefixtures("same_runner", "own")
def test_modules_of_an_own_model_decide_on_its_options(capsys):
    assert main(["toggles", "--model", "own.py", "--json"]) == 0
    toggles = json.loads(capsys.readouterr().out)["toggles"]
    blocked = {toggle["name"]: toggle["blocked"] for toggle in toggles}
    assert not blocked["patch_rms_norm"]
    for toggle, option in (("patch_swiglu", "on"), ("quantization", "int8_weight_only")):
        assert blocked[toggle][option]["reason"] == "acts on no module of this model"


@pytest.mark.usefixtures("same_runner", "own")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "own.py:fails"), "own.py, line 15: fails() raised OSError: no data here."),
        (("--model", "own.py", "--workload", "train"), "the training step needs a loss"),
    ],
)
def test_an_own_model_that_cannot_be_built_or_trained_is_a_mistake(capsys, arguments, sentence):
    assert main(["toggles", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err and not printed.out


@pytest.mark.usefixtures("same_runner")
def test_options_that_cannot_be_combined_are_listed_with_the_reason(capsys):
    both = ["--toggle", "compile=default", "--toggle", "torchscript=trace"]
    assert main(["toggles", "hydra", "--preset", "tiny", *both]) == 2
    printed = capsys.readouterr().out
    assert "torchscript" in printed.lower() and "Blocked here" in printed


def test_a_family_that_does_not_exist_is_named(capsys):
    assert main(["toggles", "nope"]) == 2
    assert "unknown family 'nope'; expected one of hydra" in capsys.readouterr().err


def test_a_runner_that_fails_gives_its_own_sentence(capsys, sent):
    failure = protocol.Failure(kind="died", sentence="The driver is too old.", fix="Update it.")
    sent(failure, then="")
    assert main(["toggles", "hydra"]) == 1
    assert "The driver is too old. Update it." in capsys.readouterr().err
