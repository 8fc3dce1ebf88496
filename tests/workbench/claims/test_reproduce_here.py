"""Every document's experiments by the real runner on the CPU, at its tiny sizes, to their end."""

from __future__ import annotations

import json

import pytest

from sessions.storage import hdf5
from sessions.studies import claims
from workbench.claims import documents
from workbench.cli import main

# A claim that a CPU can answer, by document: the experiments were run, and not only ended.
ANSWERED = {
    "adaattn": "BF16",
    "hydra": "shared RoPE cache",
    "mahia": "all components run, and compile",
    "mamba2": "selective scan, PyTorch",
    "moe": "torch.compile default",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", documents())
def test_the_experiments_of_a_document_run_to_their_end_on_the_cpu(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = tmp_path / f"{name}.h5"
    assert main(["reproduce", name, "--budget", "2", "--json", "-o", str(path)]) in (0, 1)
    rows = json.loads(capsys.readouterr().out)["claims"]
    results = {row["claim"]: row["result"] for row in rows if row["result"] != claims.NOT_HERE}
    assert results.pop(ANSWERED[name]) in (claims.HOLDS, claims.FAILS, claims.UNDECIDED), rows
    cut_off = [row["reason"] for row in rows if "cut off" in row["reason"]]
    assert not cut_off
    (study,) = claims.studies(hdf5.load(path))
    assert study.facts["ended"] == "done"
    assert [row.result for row in claims.rows(study)] == [row["result"] for row in rows]
