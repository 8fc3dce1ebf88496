"""Rules for every command: help, exit codes, and sentences in place of tracebacks."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hang_limit import HANG_S

from sessions.storage import hdf5
from workbench import commands
from workbench.cli import main

COMMANDS = sorted(
    path.stem for path in Path(commands.__path__[0]).glob("*.py") if not path.stem.startswith("_")
)


def usage_error(arguments: list[str], capsys) -> str:
    """Return the text that a mistake of usage prints; it ends with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_help_lists_every_command_with_what_it_does(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert " ".join(COMMANDS) == (
        "ab attribute bench calibrate ceilings check compare completion demo doctor export "
        "history info onnx optimize profile recover report reproduce run scale sweep toggles "
        "validate"
    )
    assert all(re.search(rf"\n    {name}\s", out) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_commands_help_explains_all_that_it_takes(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: workbench {name} ")
    assert len(out.split("\n\n")[1]) > 30  # the sentence on what it does
    options = [line for line in out.splitlines() if line.startswith("  -")]
    assert len(options) > 1 or name == "demo"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_option_is_named_beside_the_commands_own(name, capsys, pair):
    needed = {
        "ab": ["hydra"],
        "check": ["--baseline", str(pair[0])],
        "run": ["hydra"],
        "attribute": ["hydra", "--toggles", "triton=on"],
        "optimize": ["hydra"],
        "reproduce": ["moe"],
        "onnx": ["hydra", "-o", "x.onnx"],
        "scale": ["hydra"],
        "sweep": ["hydra", "--over", "preset=tiny"],
        "info": [str(pair[0])],
        "completion": ["bash"],
        "history": [str(pair[0].parent)],
        "compare": list(map(str, pair)),
        "export": [str(pair[0]), "--plot", "ecdf", "-o", "x.png"],
        "report": [str(pair[0]), "-o", "x.html"],
    }
    err = usage_error([name, *needed.get(name, []), "--colour"], capsys)
    assert err.startswith(f"usage: workbench {name} [-h]")
    assert "unrecognized arguments: --colour" in err


def test_the_version_is_that_of_the_installed_distribution(capsys):
    assert main(["--version"]) == 0
    version = importlib.metadata.version("gpu-optimization-workbench")
    assert capsys.readouterr().out == f"workbench {version}\n"


def test_an_unknown_command_is_answered_with_those_there_are(capsys):
    assert main(["measure"]) == 2
    err = capsys.readouterr().err
    assert err == f"workbench: unknown command 'measure'; expected one of {', '.join(COMMANDS)}\n"
    assert main(["_command"]) == 2
    capsys.readouterr()
    assert main(["measure", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["reason"] == "mistake" and "unknown command" in answer["failures"][0]["sentence"]


def test_a_session_that_was_saved_without_a_suffix_opens_in_the_window(tmp_path, monkeypatch):
    opened: list[list[str]] = []
    monkeypatch.setattr("workbench.ui.app.run", lambda words: opened.append(words) or 0)
    monkeypatch.chdir(tmp_path)
    assert main(["kept"]) == 2
    Path("kept").touch()
    assert main(["kept"]) == 0 and opened == [["kept"]]


READERS = [
    ["info", "FILE"],
    ["compare", "FILE", "FILE"],
    ["export", "FILE", "--plot", "ecdf", "-o", "OUT.png"],
    ["export", "FILE", "--table", "segments", "-o", "OUT.md"],
]


@pytest.mark.parametrize("line", READERS, ids=" ".join)
def test_a_missing_file_is_a_mistake_and_a_damaged_one_a_failure(line, tmp_path, damaged, capsys):
    out = tmp_path / "out"

    def call(file: Path) -> tuple[int, str]:
        code = main([part.replace("FILE", str(file)).replace("OUT", str(out)) for part in line])
        printed = capsys.readouterr()
        assert printed.out == ""
        return code, printed.err

    code, err = call(tmp_path / "none.h5")
    assert (code, err) == (
        2,
        f"workbench {line[0]}: {tmp_path / 'none.h5'}: there is no such file\n",
    )
    code, err = call(damaged)
    assert code == 1 and err.count("\n") == 1
    assert f"{damaged}: it is truncated" in err and "copy it again" in err
    code, err = call(tmp_path)
    assert code == 2 and "it is a folder" in err
    assert not list(tmp_path.glob("out*"))


WRITERS = [
    (["compare", "FILE", "FILE", "-o"], [".md", ".csv"]),
    (["export", "FILE", "--plot", "ecdf", "-o"], [".png", ".svg", ".pdf", ".csv"]),
    (["export", "FILE", "--table", "segments", "-o"], [".md", ".csv"]),
]


@pytest.mark.parametrize(("line", "suffixes"), WRITERS, ids=lambda part: " ".join(part))
def test_what_cannot_be_written_is_refused_before_anything_is_done(
    line, suffixes, tmp_path, pair, capsys
):
    def refused(output: Path) -> str:
        assert main([part.replace("FILE", str(pair[0])) for part in line] + [str(output)]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        return printed.err

    unknown = refused(tmp_path / "out.docx")
    assert f"unknown suffix '.docx'; expected one of {', '.join(suffixes)}" in unknown
    assert f"there is no folder {tmp_path / 'none'}" in refused(tmp_path / "none" / "out.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder; name a file in it" in refused(tmp_path / "folder.csv")
    assert "name too long; choose another place" in refused(tmp_path / f"{'x' * 300}.csv")


@pytest.mark.parametrize("line", [*READERS, ["history", "FILE"]], ids=" ".join)
def test_a_path_that_cannot_even_be_looked_up_is_one_sentence(line, tmp_path, capsys):
    names = {"FILE": str(tmp_path / ("x" * 300)), "OUT": str(tmp_path / "out")}
    words = [names.get(part, part.replace("OUT", names["OUT"])) for part in line]
    assert main(words) in (1, 2)
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and "File name too long" in printed.err


def test_the_demo_refuses_a_folder_that_cannot_be_made(pair, capsys):
    assert main(["demo", "--out", str(pair[0])]) == 2
    assert capsys.readouterr().err == (
        f"workbench demo: {pair[0]} cannot be a folder: File exists\n"
    )


def workbench(*arguments: str | Path, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "workbench", *map(str, arguments)],
        stderr=subprocess.PIPE,
        **options,
    )


def test_a_reader_that_has_seen_enough_is_no_error(pair):
    read, write = os.pipe()
    os.close(read)  # as `| head` does, at once
    child = workbench("info", pair[0], stdout=write)
    os.close(write)
    _, err = child.communicate(timeout=HANG_S)
    assert (child.returncode, err) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_told_in_one_sentence(pair):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        child = workbench("info", pair[0], stdout=full)
        _, err = child.communicate(timeout=HANG_S)
    assert child.returncode == 1
    assert err == b"workbench info: the result cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["info", "--help"]])
def test_help_and_version_that_cannot_be_written_are_failures(words, monkeypatch, capsys):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 1
    sentence = ": the result cannot be written: No space left on device\n"
    assert capsys.readouterr().err.endswith(sentence)


def test_a_character_that_the_terminal_lacks_does_not_end_the_command(tmp_path, pair):
    session = hdf5.load(pair[0])
    session.notes = "– µs 中"
    hdf5.save(session, tmp_path / "notes.h5")
    child = workbench(
        *("info", tmp_path / "notes.h5"),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    out, err = child.communicate(timeout=HANG_S)
    assert (child.returncode, err) == (0, b"")
    assert b"? ?s ?" in out


@pytest.mark.parametrize(
    "line",
    [
        ["run", "hydra", "--seed", "x"],
        ["onnx", "hydra", "--seed", "1.5"],
        ["attribute", "hydra", "--orders", ""],
        ["check", "--baseline", "a.h5", "--segment", "first"],
    ],
    ids=" ".join,
)
def test_a_number_that_is_none_is_answered_with_what_is_expected(line, capsys):
    with pytest.raises(SystemExit):
        main(line)
    assert f"{line[-1]!r} is not a whole number" in capsys.readouterr().err
