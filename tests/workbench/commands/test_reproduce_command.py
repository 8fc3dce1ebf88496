"""``workbench reproduce``: claimed beside measured, from runners that say what they are told."""

from __future__ import annotations

import json

import attribution_samples
import msgspec
import pytest
import wire_samples

from sessions import hdf5
from workbench import protocol
from workbench.cli import main

DONE = protocol.Finished(t_s=99.0, reason="done", steps=9)
TOGGLES = {**attribution_samples.TOGGLES, "precision": "amp_fp16"}


def on_gpu(catalogue):
    return msgspec.structs.replace(catalogue, device="cuda")


def ladder(index=0, toggles=TOGGLES, **options):
    """An attribution from its first segment to its end."""
    told = list(wire_samples.begin(0.1 + index, index))
    told += attribution_samples.messages(0.3 + index, toggles, index=index, **options)
    return [*told, DONE]


def measured(capsys):
    return {
        (row["claim"], row["unit"][:6]): row
        for row in json.loads(capsys.readouterr().out)["claims"]
    }


def test_a_ladder_is_read_rung_by_rung_and_each_claim_judged(ran, sent, tmp_path, capsys):
    told = sent(on_gpu(ran.catalogue), *ladder())
    path = tmp_path / "moe.h5"
    arguments = ["reproduce", "moe", "--only", "training ladder", "--budget", "7"]
    assert main([*arguments, "--json", "-o", str(path)]) == 0
    (command,) = (one for one in told if isinstance(one, protocol.Attribute))
    assert list(command.toggles.items())[:2] == [("compile", "default"), ("precision", "amp_fp16")]
    assert command.budget_s == 7
    assert command.base.preset == "document"
    rows = measured(capsys)
    compiled = rows["+ torch.compile", "x fast"]
    assert compiled["result"] == "holds" and compiled["low"] < 1 / 0.66 < compiled["high"]
    assert rows["+ checkpointing", "x fast"]["result"] == "does not hold"
    assert rows["+ AMP", "memory"]["result"] == "does not hold"
    exact = rows["+ checkpointing", "memory"]
    assert exact["result"] == "holds" and exact["low"] is None
    assert exact["measured"] == pytest.approx(0.97 * 0.58 * 0.61)
    study = hdf5.load(path).studies[-1]
    assert study.kind == "claims" and len(study.tables["claims"]["claim"]) == 8
    assert list(study.tables["claims"]["result"]).count("holds") == 3


def test_the_table_says_what_was_not_measured_and_why_and_exits_with_1(ran, sent, capsys):
    sent(on_gpu(ran.catalogue), *ladder(short=[1], blocked={"cuda_graphs": "no graphs"}))
    assert main(["reproduce", "moe", "--only", "training ladder"]) == 1
    out = capsys.readouterr().out
    assert "not measured" in out and "out of memory: Out of memory: 3.0 GiB" in out
    assert "blocked: no graphs" in out
    assert out.splitlines()[-1].startswith("8 claims: ")


def test_on_the_cpu_what_is_about_a_gpu_is_not_asked_for(ran, sent, capsys):
    told = sent(ran.catalogue, *ladder(memory=False))
    assert main(["reproduce", "moe", "--only", "inference ladder", "--only", "compile modes"]) == 0
    assert sum(isinstance(one, protocol.Attribute) for one in told) == 1
    out = capsys.readouterr().out
    assert "1 holds, 4 not applicable here" in out


def test_where_nothing_can_be_measured_nothing_is_asked_for_and_it_says_so(ran, sent, capsys):
    told = sent(ran.catalogue)
    assert main(["reproduce", "hydra", "--only", "kernels"]) == 0
    assert not any(isinstance(one, protocol.Bench) for one in told)
    assert capsys.readouterr().out.count("Triton kernels run on a GPU") == 3


def test_all_commands_of_an_experiment_run_and_a_failed_one_does_not_end_it(ran, sent, capsys):
    failure = protocol.Failure(kind="out-of-memory", sentence="Out of memory: 9 GiB more.")
    failed = [failure, protocol.Finished(reason="failed", steps=0)]
    alone = ladder(toggles={"checkpointing": "full"})
    told = sent(on_gpu(ran.catalogue), *failed, *alone)
    assert main(["reproduce", "moe", "--only", "each alone", "--json"]) == 1
    assert sum(isinstance(one, protocol.Attribute) for one in told) == 2
    rows = measured(capsys)
    amp = rows["AMP", "x fast"]
    assert amp["result"] == "not measured"
    assert amp["reason"] == "the attribution did not begin; Out of memory: 9 GiB more."
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
