"""``workbench run --model FILE.py``: a real run of one's own file, and what a bad one answers."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from sessions.storage import hdf5
from workbench.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """No test writes to the user's journals."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_the_example_trains_and_its_session_says_how_to_run_it_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLE.parent)
    output = tmp_path / "mine.h5"
    options = ["--workload", "train", "--toggle", "adamw=fused", "--steps", "20", "--json"]
    assert main(["run", "--model", "own_model.py:build", *options, "-o", str(output)]) == 0
    result = json.loads(capsys.readouterr().out)
    (segment,) = result["segments"]
    assert segment["steps"] == 20 and segment["ledger"]["parameters"] > 1000
    assert segment["configuration"]["model"]["source"] == f"{EXAMPLE}:build"
    assert [evidence["status"] for evidence in segment["evidence"]] == ["effective"]
    session = hdf5.load(output)
    assert session.title == "own_model train"
    assert main(["info", str(output), "--command"]) == 0
    command = capsys.readouterr().out
    assert "workbench run own --preset file --workload train" in command
    assert f"--set source={EXAMPLE}:build" in command


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        (None, 2, "own: cannot read '{path}' on {host}: No such file or directory"),
        pytest.param(
            "def build():\n    return 3\n",
            2,
            "own: build() of {path} returned int; expected (module",
            marks=pytest.mark.slow,  # the sentence: test_own_model.py; a mistake's code: above
        ),
        (
            "def build():\n    raise OSError('no disk')\n",
            1,
            "{path}, line 2: build() raised OSError: no disk. Correct the file and run again",
        ),
    ],
    ids=["missing", "nonsense", "raises"],
)
def test_a_file_that_cannot_serve_is_one_sentence(tmp_path, capsys, text, code, sentence):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    assert main(["run", "--model", str(path), "--steps", "2"]) == code
    printed = capsys.readouterr()
    assert sentence.format(path=path, host=platform.node()) in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a family, one of "),
        (["hydra", "--model", "mine.py"], "'hydra' and --model name two models; leave one out"),
    ],
)
def test_a_family_and_a_file_are_one_or_the_other(ran, sent, capsys, arguments, sentence):
    sent(ran.catalogue)
    assert main(["run", *arguments]) == 2
    assert sentence in capsys.readouterr().err
