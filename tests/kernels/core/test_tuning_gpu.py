"""Tuning on a GPU: tiles are timed, stored for the next process, and give right numbers."""

import json
import os
import subprocess
import sys

import pytest
import torch

from kernels.core.check import Exact
from kernels.core.triton_helpers import INTERPRETED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or INTERPRETED,
        reason="tiles are timed on a CUDA GPU, and torch finds none",
    ),
]

PROGRAM = """
import json, sys
import torch
import kernels
from kernels import OPS, Case
from kernels.core import tuning
from kernels.core.check import Exact

rows = int(sys.argv[1])
cases = {"rms_norm": {"rows": rows, "dim": 768}, "swiglu": {"rows": rows, "dim": 2048}}
timed = []
times_us = tuning._times_us
tuning._times_us = lambda call, device: timed.append(1) or times_us(call, device)
wrong = []
for name, sizes in cases.items():
    op = OPS[name]
    inputs = op.inputs(Case("", sizes), torch.device("cuda"), torch.bfloat16, 0)
    with kernels.tuning("on"):
        compared = Exact(op, inputs).compare(op.implementations["triton"])
    wrong += [str(c) for c in compared if not c.right]
tiles = {
    c.kernel: [c.source, c.tile, c.us, c.heuristic_us, list(c.dropped.values())]
    for c in kernels.tiles()
}
print(json.dumps([tiles, wrong, len(timed)]))
"""


def run(folder, rows: int):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(rows)],
        env=os.environ | {"XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
def test_a_second_process_takes_from_disk_what_the_first_tuned_also_at_another_batch(tmp_path):
    names = {"rms_norm.forward", "rms_norm.backward", "gated.forward", "gated.backward"}
    first, wrong, timed = run(tmp_path, 16384)
    assert not wrong and timed
    assert first.keys() == names
    for kernel, (source, _, us, heuristic_us, dropped) in first.items():
        assert source == "tuned", kernel
        assert 0 < us <= heuristic_us
        assert not [reason for reason in dropped if reason.startswith("wrong")]
    second, wrong, timed = run(tmp_path, 8192)
    assert not wrong and not timed
    assert {k: v[:3] for k, v in second.items()} == {k: ["disk", *v[1:3]] for k, v in first.items()}


def test_nothing_is_tuned_while_a_graph_is_captured(tmp_path, monkeypatch):
    import kernels
    from kernels.core import tuning

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "_times_us", lambda *_: pytest.fail("timed during a capture"))
    x = torch.randn(4096, 1184, device="cuda", dtype=torch.bfloat16)
    kernels.rms_norm(x, impl="triton")  # compiles
    kernels.reset_tiles()
    graph = torch.cuda.CUDAGraph()
    with kernels.tuning("on"), torch.cuda.graph(graph):
        y = kernels.rms_norm(x, impl="triton")
    graph.replay()
    (choice,) = kernels.tiles()
    assert choice.source == "heuristic"
    assert torch.equal(y, kernels.rms_norm(x, impl="triton"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("attention", "B4 S4096 H12 D64 causal"), ("moe_experts", None),
        ("moe_gating", None), ("causal_conv1d", None), ("gated_rms_norm", None), ("rope", None),
        ("linear_cross_entropy", None), ("ssd_scan", None), ("token_router", None),
    ],
)  # fmt: skip
def test_the_tuned_kernels_of_an_operator_are_right(tmp_path, monkeypatch, name, case):
    import kernels
    from kernels import OPS
    from kernels.core import tuning

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for tunable in tuning.TUNABLES.values():
        monkeypatch.setattr(tunable, "_stored", {})
        monkeypatch.setattr(tunable, "_tuned", {})
    op = OPS[name]
    chosen = next((c for c in op.cases if c.name == case), next(c for c in op.cases if c.bench))
    inputs = op.inputs(chosen, torch.device("cuda"), torch.bfloat16, 0)
    kernels.reset_tiles()
    exact = Exact(op, inputs, large=True)
    with kernels.tuning("on"):
        exact.results(op.implementations["triton"])
    wrong = [str(c) for c in exact.compare(op.implementations["triton"]) if not c.right]
    choices = kernels.tiles()
    print("\n".join(f"{c}; dropped: {c.dropped}" for c in choices))
    assert not wrong and choices
    assert {choice.source for choice in choices} == {"tuned"}
    assert all(choice.us <= choice.heuristic_us for choice in choices)
