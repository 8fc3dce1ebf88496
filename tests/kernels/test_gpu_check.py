"""Arithmetic of the GPU check: which comparisons it makes, and how processes share them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import OPS
from kernels.core.triton_helpers import INSTALLED

SCRIPT = Path(__file__).parents[1] / "gpu" / "check_kernels.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("check_kernels", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def small(op):
    return [case.name for case in op.cases if not case.bench] + [f"random {i}" for i in range(3)]


def comparisons(script, op, monkeypatch):
    """Return case, dtype, apart and left-out implementations of each small case's comparisons."""
    calls = []

    def note(op, case, dtype, apart, worst, large=False, left_out=()):
        if not large:
            calls.append((case.name, dtype, apart, left_out))
        return []

    monkeypatch.setattr(script, "_compare", note)
    for title, _, test in script._checks(op, {}):
        if title.rsplit(" ", 1)[-1] in ("apart", *map(str, script.DTYPES)):
            test()
    return calls


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_shape_is_compared_in_fp32_and_16_bits_and_every_dtype_in_many(
    script, name, monkeypatch
):
    op = OPS[name]
    calls = comparisons(script, op, monkeypatch)
    for case in small(op):
        dtypes = {dtype for other, dtype, *_ in calls if other == case}
        assert torch.float32 in dtypes and len(dtypes) > 1, case
    for dtype in script.DTYPES:
        assert len({case for case, other, *_ in calls if other == dtype}) >= len(small(op)) // 2
    assert sum(apart for *_, apart, _ in calls) >= 2


def test_what_compiles_for_each_shape_is_asked_for_each_once_and_in_every_dtype(
    script, monkeypatch
):
    calls = comparisons(script, OPS["attention"], monkeypatch)
    flex = {(c, d) for c, d, _, left_out in calls if script.COMPILED_FOR_EACH not in left_out}
    assert sorted(case for case, _ in flex) == sorted(small(OPS["attention"]))
    assert {dtype for _, dtype in flex} == set(script.DTYPES)


@pytest.mark.parametrize("name", ["attention", "rms_norm"])
def test_the_processes_of_an_operator_make_all_of_its_checks_once(script, name, monkeypatch):
    done = []
    monkeypatch.setattr(script, "_compare", lambda *_, **__: done.append("compared") or [])
    for other in (
        "_compiled", "_replayed", "_captured", "_synchronizes", "_autocast", "_huge",
    ):  # fmt: skip
        monkeypatch.setattr(script, other, lambda *_, n=other: done.append(n) or [])
    script.check(OPS[name])
    everything = sorted(done)
    done.clear()
    shares = [script.check(OPS[name], *arguments[1:]) for arguments in script._shares(name)]
    assert sorted(done) == everything and len(shares) == (3 if name in script.SPLIT else 1)
    assert script._together(shares)["checks"] == len(everything)


@pytest.mark.parametrize("wrong", [None, "attention"])
def test_several_operators_are_checked_without_being_timed(script, wrong, monkeypatch, tmp_path):
    calls = []

    def child(name, part, deadline, *arguments):
        calls.append((name, part, *arguments))
        return {"checks": 1, "failures": ["off"] * (name == wrong), "worst": {}}

    monkeypatch.setattr(script, "_child", child)
    monkeypatch.setattr(script, "environment", dict)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    file = tmp_path / "report.json"
    only = ["--only", "rms_norm", "attention", "--part", "right"]
    monkeypatch.setattr(sys, "argv", ["check_kernels.py", *only, "-o", str(file)])
    assert script.main() == (wrong is not None)
    assert {part for _, part, *_ in calls} == {"right"}
    assert [arguments[-1] for name, _, *arguments in calls if name == "attention"] == [
        "float32", "float16", "bfloat16",
    ]  # fmt: skip
    report = json.loads(file.read_text())
    assert report["right"].keys() == {"rms_norm", "attention"} and not report["fast"]
    assert report["right"]["attention"]["checks"] == 3


def test_case_names_tell_the_checks_of_an_operator_apart(script):
    for op in OPS.values():
        titles = [title for title, *_ in script._checks(op, {})]
        assert len(set(titles)) == len(titles), op.name


@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("arguments", "timed", "shapes", "absent", "auto"),
    [
        pytest.param(
            ["--backends", "manual", "sdpa_cudnn"],
            "manual",
            2,
            {"sdpa_cudnn"},
            "sdpa_flash",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--operator", "adaptive_attention", "--backends", "torch", "--shapes", "H3/3"],
            "torch",
            1,
            set(),
            "triton",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["attention", "adaptive"],
)
def test_attention_s_comparison_times_what_runs_here_and_says_what_does_not(
    tmp_path, arguments, timed, shapes, absent, auto
):
    command = [sys.executable, str(SCRIPT.with_name("run_attention.py")), str(tmp_path)]
    done = subprocess.run(
        [*command, "--device", "cpu", "--seconds", "0.05", *arguments, "--together", "1", "3"],
        env=os.environ | {"TRITON_INTERPRET": "1"},  # unchanged, without what these tests change
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "attention.json").read_text())
    assert len(rows) == done.stdout.count("\n") == shapes
    for row in rows:
        for name in ("triton", "1 together", "3 together", timed):
            assert row["forward_us"][name] > 0 and row["backward_us"][name] > 0
        assert row["same"] == {"triton": True, "1 together": True, "3 together": True}
        assert set(row["problems"]) == absent
        assert all("needs a CUDA GPU" in problem for problem in row["problems"].values())
        assert row["auto"] == [auto, auto]
