"""``workbench reproduce``: claimed beside measured, from runners that say what they are told."""

from __future__ import annotations

import json
import sys
import threading

import attribution_samples
import msgspec
import pytest
import wire_samples
from interrupts import press_ctrl_c
from sent_commands import only

from sessions.model import Phase
from sessions.storage import hdf5
from sessions.studies import claims
from workbench import protocol
from workbench.claims import _course, documents
from workbench.cli import main
from workbench.client import headless
from workbench.client.runner_process import Runner
from workbench.commands._headless import Bar

DONE = protocol.Finished(t_s=99.0, reason="done", steps=9)
TOGGLES = {**attribution_samples.TOGGLES, "precision": "amp_fp16"}


def on_gpu(catalogue):
    return msgspec.structs.replace(catalogue, device="cuda")


def ladder(index=0, toggles=TOGGLES, **options):
    """Return an attribution from its first segment to its end."""
    messages = list(wire_samples.begin(0.1 + index, index))
    messages += attribution_samples.messages(0.3 + index, toggles, index=index, **options)
    return [*messages, DONE]


def measured(capsys):
    return {
        (row["claim"], row["unit"][:6]): row
        for row in json.loads(capsys.readouterr().out)["claims"]
    }


def test_a_ladder_is_read_rung_by_rung_and_each_claim_judged(ran, sent, tmp_path, capsys):
    commands = sent(on_gpu(ran.catalogue), *ladder())
    path = tmp_path / "moe.h5"
    arguments = ["reproduce", "moe", "--only", "training ladder", "--budget", "7"]
    assert main([*arguments, "--json", "-o", str(path)]) == 0
    command = only(commands, protocol.Attribute)
    assert list(command.toggles.items())[:2] == [("compile", "default"), ("precision", "amp_fp16")]
    assert command.budget_s == 7
    assert command.base.preset == "document"
    rows = measured(capsys)
    compiled = rows["+ torch.compile", "x as f"]
    assert compiled["result"] == "holds" and compiled["low"] < 1 / 0.66 < compiled["high"]
    assert rows["+ checkpointing", "x as f"]["result"] == "does not hold"
    assert rows["+ AMP", "memory"]["result"] == "does not hold"
    exact = rows["+ checkpointing", "memory"]
    assert exact["result"] == "holds" and exact["low"] is None
    assert exact["measured"] == pytest.approx(0.97 * 0.58 * 0.61)
    (study,) = claims.studies(hdf5.load(path))
    assert [row.result for row in claims.rows(study)].count("holds") == 3
    assert len(claims.rows(study)) == 8 and study.facts["final"]


def test_the_table_says_what_was_not_measured_and_why_and_exits_with_1(ran, sent, capsys):
    sent(on_gpu(ran.catalogue), *ladder(short=[1], blocked={"cuda_graphs": "no graphs"}))
    assert main(["reproduce", "moe", "--only", "training ladder"]) == 1
    out = capsys.readouterr().out
    assert "not measured" in out and "out of memory: Out of memory: 3.0 GiB" in out
    assert "blocked: no graphs" in out
    assert out.splitlines()[-1].startswith("8 claims: ")


def test_on_the_cpu_what_is_about_a_gpu_is_not_asked_for(ran, sent, capsys):
    commands = sent(ran.catalogue, *ladder(memory=False))
    assert (
        main(
            [
                "reproduce",
                "moe",
                "--only",
                "inference ladder",
                "--only",
                "torch.compile reduce-overhead",
            ]
        )
        == 0
    )
    assert sum(isinstance(command, protocol.Attribute) for command in commands) == 1
    out = capsys.readouterr().out
    assert "2 hold, 3 not applicable here" in out


def test_where_nothing_can_be_measured_nothing_is_asked_for_and_it_says_so(ran, sent, capsys):
    commands = sent(ran.catalogue)
    assert main(["reproduce", "hydra", "--only", "kernels"]) == 0
    assert not any(isinstance(command, protocol.Bench) for command in commands)
    assert capsys.readouterr().out.count("Triton kernels run on a GPU") == 4


def test_all_commands_of_an_experiment_run_and_a_failed_one_does_not_end_it(ran, sent, capsys):
    failure = protocol.Failure(kind="out-of-memory", sentence="Out of memory: 9 GiB more.")
    failed = [failure, protocol.Finished(reason="failed", steps=0)]
    alone = ladder(toggles={"checkpointing": "full"})
    commands = sent(on_gpu(ran.catalogue), *failed, *alone)
    assert main(["reproduce", "moe", "--only", "each alone", "--json"]) == 1
    assert sum(isinstance(command, protocol.Attribute) for command in commands) == 2
    rows = measured(capsys)
    amp = rows["AMP", "x as f"]
    assert amp["result"] == "not measured"
    assert amp["reason"] == "the attribution was not started; Out of memory: 9 GiB more."
    assert rows["checkpointing", "memory"]["measured"] == pytest.approx(0.61)
    assert rows["checkpointing", "of the"]["measured"] == pytest.approx(1.24, rel=0.03)


def test_expecting_that_all_holds_exits_with_1_where_it_does_not(ran, sent, capsys):
    sent(on_gpu(ran.catalogue), *ladder())
    arguments = ["reproduce", "moe", "--only", "training ladder", "--expect", "holds"]
    assert main(arguments) == 1
    assert "expected every claim to hold" in capsys.readouterr().err


def test_a_runner_that_dies_leaves_claims_that_were_not_measured(ran, sent, capsys):
    sent(on_gpu(ran.catalogue), then="sys.exit(3)")
    assert main(["reproduce", "moe", "--only", "training ladder", "--json"]) == 1
    rows = measured(capsys)
    assert {row["result"] for row in rows.values()} == {"not measured"}


def test_documents_and_experiments_are_known_by_name(ran, sent, capsys):
    assert main(["reproduce", "bert"]) == 2
    assert "expected one of adaattn, hydra, mahia, mamba2, moe" in capsys.readouterr().err
    assert main(["reproduce", "moe", "--only", "stairs"]) == 2
    assert "unknown 'stairs'; expected one of training ladder" in capsys.readouterr().err


# In time, and as they come

COMPILING = (
    *wire_samples.begin(0.2, 0),
    protocol.PhaseChanged(t_s=0.3, segment=0, phase=Phase.COMPILE),
)


@pytest.fixture
def runners(monkeypatch, tmp_path):
    """Let each runner after the other say its part once it is asked, and then hear nothing."""

    def script(*parts: tuple[protocol.AnyMessage, ...]):
        left = list(parts)

        def launch(journal):
            hello, *rest = left.pop(0)
            lines = [protocol.encode(hello), b"".join(map(protocol.encode, rest))]
            program = (
                f"import os, sys, time\nos.write(1, {lines[0]!r})\nsys.stdin.readline()\n"
                f"os.write(1, {lines[1]!r})\ntime.sleep(1e6)"
            )
            path = tmp_path / f"runner{len(left)}.py"  # too long for an argument
            path.write_text(program)
            return Runner(journal, (sys.executable, "-S", str(path)))

        monkeypatch.setattr(headless, "Runner", launch)
        monkeypatch.setattr("workbench.client.runner_process.GRACE_S", 0.1)
        return left

    return script


def test_a_compile_that_takes_too_long_is_ended_and_the_next_experiment_has_its_own_runner(
    ran, runners, monkeypatch, capsys
):
    monkeypatch.setattr(_course, "SLACK_S", 0.5)
    for experiment in documents()["moe"].experiments:
        if experiment.name == "training ladder":  # the other's runner has the time that it needs
            monkeypatch.setitem(vars(experiment), "build_s", 0.1)
    catalogue = on_gpu(ran.catalogue)
    left = runners((catalogue, *COMPILING), (catalogue, *ladder()))
    chosen = ("--only", "training ladder", "--only", "inference ladder", "--budget", "0.1")
    assert main(["reproduce", "moe", *chosen, "--json"]) == 1
    assert not left
    rows = measured(capsys)
    assert rows["+ AMP", "x as f"]["result"] == "not measured"
    assert "cut off after 1 s" in rows["+ AMP", "x as f"]["reason"]
    assert rows["+ torch.compile, inference", "x as f"]["result"] == "holds"


def test_the_limit_ends_all_and_what_was_not_reached_says_so(ran, runners, capsys):
    both = (on_gpu(ran.catalogue), *COMPILING)  # the first experiment has two studies
    left = runners(both, both)
    assert main(["reproduce", "all", "--limit", "5", "--json"]) == 1
    assert not left, "no other runner was started"
    answered = json.loads(capsys.readouterr().out)
    assert answered["documents"] == ["adaattn", "hydra", "mahia", "mamba2", "moe"]
    reasons = {row["document"]: row["reason"] for row in answered["claims"]}
    assert "the total limit of 5 s was reached first" in reasons["moe"]
    about_a_gpu = [row for row in answered["claims"] if row["experiment"] != "on a CPU"]
    assert {row["result"] for row in about_a_gpu} == {"not measured"}
    first = answered["claims"][0]["reason"]
    assert ", its share of the limit of 5 s" in first


def test_claims_are_told_as_they_become_known(ran, sent, capsys):
    sent(on_gpu(ran.catalogue), *ladder(), *ladder(1))
    chosen = ("--only", "training ladder", "--only", "inference ladder")
    assert main(["reproduce", "moe", *chosen, "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert "moe: + torch.compile, claimed 1.5x: measured 1.51x (1.48 to 1.55) as fast as" in err
    assert err.count(", claimed ") == 11
    assert "| claim | document | measured (interval) | verdict |" in out
    row = "| moe: + torch.compile | 1.5x | 1.51x (1.48 to 1.55) as fast as the baseline | holds: "
    assert row in out


def test_ctrl_c_keeps_the_claims_that_were_measured(ran, runners, monkeypatch, tmp_path, capsys):
    known = threading.Event()
    messages = (*ladder(), *wire_samples.begin(5.0, 1))
    runners((on_gpu(ran.catalogue), *messages))
    press_ctrl_c(after=known)
    path = tmp_path / "kept.h5"
    write = Bar.write

    def heard(bar, text):
        write(bar, text)
        known.set()

    monkeypatch.setattr(Bar, "write", heard)
    assert main(["reproduce", "moe", "-o", str(path)]) == 130
    rows = claims.newest(hdf5.load(path)).values()
    results = [row.result for row in rows]
    assert results.count("holds") == 3 and results.count("not measured") == len(results) - 8
    assert {row.reason for row in rows if row.result == "not measured"} >= {"interrupted"}
    assert "interrupted" in capsys.readouterr().out


def test_the_claims_of_a_session_are_exported_as_a_table(ran, sent, tmp_path, capsys):
    sent(on_gpu(ran.catalogue), *ladder())
    path = tmp_path / "moe.h5"
    assert main(["reproduce", "moe", "--only", "training ladder", "-o", str(path)]) == 0
    for name in ("claims.md", "claims.csv"):
        assert main(["export", str(path), "--table", "claims", "-o", str(tmp_path / name)]) == 0
        assert "E11 + AMP" in (tmp_path / name).read_text()
    assert main(["export", str(ran.path), "--table", "claims", "-o", str(tmp_path / "b.md")]) == 2
    assert "workbench reproduce" in capsys.readouterr().err


def test_the_numbers_without_a_claim_are_printed_with_their_reasons(ran, sent, capsys):
    commands = sent(on_gpu(ran.catalogue))
    assert main(["reproduce", "hydra", "moe", "--omissions"]) == 0
    out = capsys.readouterr().out
    assert "| hydra | RTX 4090 | the author's GPU |" in out and "| moe | Mode 1 |" in out
    assert main(["reproduce", "mamba2", "--omissions", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["reason"] == "done"
    (first, *_) = printed["omissions"]
    assert first == {"document": "mamba2", "passage": "Production 2025", "reason": "a year"}
    assert not commands, "nothing is measured"
