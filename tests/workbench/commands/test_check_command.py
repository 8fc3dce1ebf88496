"""``workbench check``: planted regressions in a temporary repository, with real runners."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest
from hang_limit import HANG_S
from interrupts import press_ctrl_c
from session_files import session_of

from sessions.model import OWN, SCRIPT, Configuration, Session
from sessions.storage import hdf5
from sessions.verdicts.regression import MODEL_COMMIT, MODEL_FILE, Finding
from workbench import alternating_runners
from workbench.cli import main
from workbench.client.headless import Outcome
from workbench.commands.check import _code, commits_of
from workbench.git import commit_of

MODEL = """
import time
import torch

STEP_S, MEMORY_MIB, FACTOR = {step_s}, {memory_mib}, {factor}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)
        self.ballast = torch.ones(MEMORY_MIB << 18)

    def forward(self, x):
        time.sleep(STEP_S)
        return FACTOR * self.linear(x)

def build():
    return Model(), lambda batch: torch.randn(batch, 32)
"""
STEP_S, MEMORY_MIB, FACTOR = 0.02, 1, 1.0
SLOWER, LARGER, WRONG = {"step_s": 0.021}, {"memory_mib": 160}, {"factor": 1.001}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    monkeypatch.chdir(folder)
    return folder


def git(folder, *arguments):
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def commit(folder, **planted):
    values = {"step_s": STEP_S, "memory_mib": MEMORY_MIB, "factor": FACTOR, **planted}
    (folder / "model.py").write_text(MODEL.format(**values))
    git(folder, "add", "model.py")
    git(folder, "commit", "-q", "--allow-empty", "-m", "A change")


def record(folder):
    main(["run", "--model", str(folder / "model.py"), "--seconds", "0.5", "-o", "base.h5"])


def pretend(folder, recorded, **model):
    """Save a baseline of which only its commit is known: no runner has run it."""
    facts = {MODEL_COMMIT: recorded, MODEL_FILE: "model.py"}
    source = {"source": f"{folder / 'model.py'}:build", **model}
    configuration = Configuration(family=OWN, preset="file", model=source)
    hdf5.save(session_of(configuration, **facts), folder / "base.h5")


def check(capsys, *arguments):
    capsys.readouterr()
    code = main(["check", "--baseline", "base.h5", "--region", "2", "--json", *arguments])
    answer = json.loads(capsys.readouterr().out)
    return code, {row["measure"]: row["regressed"] for row in answer["findings"]}, answer


def test_a_slowdown_a_memory_growth_and_a_wrong_result_are_reported(repository, capsys):
    commit(repository, step_s=0.004)
    pretend(repository, commit_of(repository))
    commit(repository, step_s=0.012, **LARGER, **WRONG)
    code, regressed, answer = check(capsys, "--budget", "120")
    assert code == 1 and answer["paired"]
    assert regressed == {"step time": True, "peak memory": True, "results": True}


@pytest.mark.parametrize("unknown", ["step time", "peak memory", "results"])
def test_no_measure_that_is_not_known_passes_for_fine(unknown, capsys):
    measures = ("step time", "peak memory", "results")
    for regressed, code in ((None, 3), (True, 1), (False, 0)):
        findings = [
            Finding(name, "", "", "a change", regressed if name == unknown else False)
            for name in measures
        ]
        assert _code(Outcome(Session(), Path(), "done"), findings) == code
        is_silent = code == 0
        assert (f"{unknown}: " in capsys.readouterr().err) is not is_silent


@pytest.mark.slow
@pytest.mark.parametrize("planted", [{}, SLOWER, LARGER, WRONG], ids=repr)
@pytest.mark.parametrize("repeat", range(20))
def test_only_what_was_planted_is_reported(repository, capsys, planted, repeat):
    commit(repository)
    record(repository)
    commit(repository, **planted)
    code, regressed, _ = check(capsys, "--budget", "120")
    assert regressed == {
        "step time": planted is SLOWER,
        "peak memory": planted is LARGER,
        "results": planted is WRONG,
    }
    assert code == (1 if planted else 0)


@pytest.mark.slow
def test_a_commit_that_is_gone_leaves_an_unpaired_comparison_without_a_claim(repository, capsys):
    commit(repository)
    record(repository)
    git(repository, "update-ref", "-d", "HEAD")
    git(repository, "reflog", "expire", "--expire=now", "--all")
    git(repository, "gc", "-q", "--prune=now")
    commit(repository, **WRONG)
    code, regressed, answer = check(capsys, "--budget", "1")
    assert code == 1 and not answer["paired"]
    assert "no commit" in answer["unpaired_because"]
    assert regressed["step time"] is None and regressed["results"] is True
    time = answer["findings"][0]
    assert "unpaired" in time["change"] and "interval" not in time["change"]


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        ("", "does not record its commit"),
        ("0123456789abcdef", "no commit 0123456789ab here"),
        ("--lock", "is not the hash of a commit"),  # an option of git
        ("HEAD", "is not the hash of a commit"),
        ("main", "is not the hash of a commit"),
    ],
)
def test_a_baseline_that_cannot_be_checked_out_says_why(repository, recorded, why):
    commit(repository)
    pretend(repository, recorded)
    session = hdf5.load(repository / "base.h5")
    with commits_of(session, session.segments[0], None) as commits:
        assert commits.baseline is None and why in commits.why


def test_a_repository_that_git_refuses_is_not_called_missing(repository, monkeypatch):
    commit(repository)
    pretend(repository, commit_of(repository))
    session = hdf5.load(repository / "base.h5")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with commits_of(session, session.segments[0], None) as commits:
        assert commits.baseline is None
        assert commits.why.startswith(f"git refuses the repository of {repository}: detected dub")
    monkeypatch.setenv("PATH", "")
    with commits_of(session, session.segments[0], None) as commits:
        assert commits.why == "git is not installed, or does not answer"


@pytest.mark.parametrize("beside", ["..", "."], ids=["relative", "absolute"])
def test_a_file_outside_of_the_checkout_never_runs_as_the_old_one(repository, beside):
    commit(repository)
    pretend(repository, commit_of(repository))
    session = hdf5.load(repository / "base.h5")
    folder = "../" * 30 + str(repository) if beside == ".." else str(repository)
    session.segments[0].ledger[MODEL_FILE] = f"{folder}/model.py"
    with commits_of(session, session.segments[0], None) as commits:
        assert commits.baseline is None and "outside of its repository" in commits.why


def test_a_baseline_without_the_file_of_its_model_is_a_mistake(repository, capsys):
    configuration = Configuration(family=OWN, preset="file")
    hdf5.save(session_of(configuration), repository / "base.h5")
    assert main(["check", "--baseline", "base.h5"]) == 2
    assert "does not record its model's file" in capsys.readouterr().err


def test_the_baseline_runs_from_a_checkout_that_is_removed_again(repository):
    commit(repository)
    pretend(repository, commit_of(repository), sha256="unchanged")
    commit(repository, **WRONG)
    session = hdf5.load(repository / "base.h5")
    with commits_of(session, session.segments[0], None) as commits:
        old, new = commits.baseline, commits.current
        file = Path(str(old.configuration.model["source"]).removesuffix(":build"))
        assert "FACTOR = 0.02, 1, 1.0\n" in file.read_text()
        assert old.configuration.model["sha256"] == "unchanged"  # other content is refused
        assert new.configuration.model == {"source": f"{repository}/model.py:build", "sha256": ""}
        assert old.environment["PYTHONPATH"].startswith(str(file.parent))
    assert not file.exists()
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1


class Silent:
    """A runner that says nothing until it is cancelled."""

    reading = threading.Event()

    def __init__(self, **_):
        self._ended = threading.Event()

    def messages(self):
        self.reading.set()
        self._ended.wait(HANG_S)
        return iter(())

    def cancel(self, _within_s):
        self._ended.set()

    def close(self):
        self._ended.set()


def test_ctrl_c_while_the_runners_start_is_no_failure_of_a_commit(repository, monkeypatch, capsys):
    commit(repository)
    pretend(repository, commit_of(repository))
    monkeypatch.setattr(alternating_runners, "Runner", Silent)
    press_ctrl_c(after=Silent.reading)
    assert main(["check", "--baseline", "base.h5", "-o", "checked.h5"]) == 130
    printed = capsys.readouterr()
    assert printed.out == "Nothing was compared.\n"
    assert (
        printed.err
        == "Interrupted with Ctrl+C.\nNothing was measured, so checked.h5 was not written.\n"
    )


def test_the_name_of_a_side_says_that_files_have_changed_since_its_commit(repository):
    commit(repository)
    pretend(repository, commit_of(repository))
    session = hdf5.load(repository / "base.h5")
    for change, mark in (("", ""), ("# changed", "+")):
        with (repository / "model.py").open("a") as file:
            file.write(change)
        with commits_of(session, session.segments[0], None) as commits:
            digits = commit_of(repository).rstrip("+")[:13]
            assert commits.current.title == f"current {digits}{mark}"


def test_a_check_in_a_hook_of_git_leaves_the_index_of_the_commit_alone(repository, monkeypatch):
    commit(repository)
    pretend(repository, commit_of(repository))
    (repository / "model.py").write_text("# changed")
    git(repository, "add", "model.py")
    index = repository / ".git" / "index"
    session, before = hdf5.load(repository / "base.h5"), index.read_bytes()
    for path in (index, Path(".git/index")):  # of `git commit -a`, and of `git commit`
        monkeypatch.setenv("GIT_INDEX_FILE", str(path))
        monkeypatch.setenv("GIT_DIR", ".git")
        with commits_of(session, session.segments[0], None) as commits:
            assert not commits.why
            assert commits.current.title.endswith(f"{commit_of(repository)[:13]}+")
        assert index.read_bytes() == before


@pytest.mark.parametrize("relative", ["", "../outside.py"])
def test_a_baseline_decides_on_no_code_outside_of_the_repository(repository, relative, capsys):
    commit(repository)
    outside = repository.parent / "outside.py"
    outside.write_text(f"open({str(repository / 'it ran')!r}, 'w')\n")
    (repository / "link.py").symlink_to(outside)
    for file in (outside, repository / "link.py"):
        pretend(repository, commit_of(repository), source=f"{file}:build")
        session = hdf5.load(repository / "base.h5")
        session.segments[0].ledger[MODEL_FILE] = relative
        hdf5.save(session, repository / "base.h5")
        assert main(["check", "--baseline", "base.h5"]) == 2
        assert "it is outside of" in capsys.readouterr().err
    assert not (repository / "it ran").exists()


def test_a_baseline_of_a_script_is_refused_before_anything_runs(repository, capsys):
    configuration = Configuration(
        family=SCRIPT, preset="train.py", settings={"command": "python train.py"}
    )
    hdf5.save(session_of(configuration), repository / "base.h5")
    assert main(["check", "--baseline", "base.h5"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "base.h5 is of a script" in line


def test_the_model_must_be_named_where_its_file_has_moved(repository, capsys):
    commit(repository)
    pretend(repository, commit_of(repository))
    (repository / "model.py").unlink()
    assert main(["check", "--baseline", "base.h5"]) == 2
    assert "name the model's with --model" in capsys.readouterr().err
