"""Profiling through the real runner: times and bytes that add up, for the modules of the model."""

from __future__ import annotations

import gzip
import json

import msgspec
import numpy as np
import pytest
from hang_limit import HANG_S

from sessions.model import Configuration
from sessions.storage import hdf5
from sessions.studies import breakdown
from workbench import protocol
from workbench.protocol import Profile


def profile(runner, *configurations, **options):
    before = len(breakdown.profiles(runner.session))
    runner.send(Profile(configurations=list(configurations), **{"steps": 2, **options}))
    assert runner.finish().reason == "done", runner.describe()
    return breakdown.profiles(runner.session)[before:]


@pytest.fixture(scope="module")
def trained(shared, small, tmp_path_factory):
    """Return a training step of which every second block is checkpointed, and its trace."""
    path = tmp_path_factory.mktemp("profile") / "trace.json.gz"
    toggles = {"checkpointing": "selective"}
    configuration = msgspec.structs.replace(small, workload="train", toggles=toggles)
    (study,) = profile(shared, configuration, traces=[str(path)])
    return study, path


def test_own_times_of_operators_add_up_to_the_profiled_steps(trained):
    study, _ = trained
    # By construction but for what lies between two marked steps; no clock decides on it.
    assert breakdown.total_us(study) <= study.facts["profiled_us"]
    with gzip.open(trained[1]) as file:
        events = json.load(file)["traceEvents"]
    steps = [event["dur"] for event in events if event["name"] == "workbench step"]
    assert len(steps) == 2
    assert breakdown.total_us(study) == pytest.approx(sum(steps) / 2, rel=1e-3)


def test_fused_steps_belong_to_the_layers_that_compute_them(shared, small):
    toggles = {"precision": "bf16", "fused_linear": "torch"}
    (study,) = profile(shared, msgspec.structs.replace(small, workload="decode", toggles=toggles))
    modules = {str(module) for module in study.tables["kernels"]["module"]}
    for part in ("attention", "attention.qkv", "attention.out", "mlp.gate_up", "mlp.down"):
        assert {f"blocks.0.{part}", f"blocks.1.{part}"} <= modules


def test_forward_backward_and_recomputation_belong_to_the_modules(trained):
    study, _ = trained
    table = study.tables["kernels"]
    kernels_of = {(str(m), str(p)) for m, p in zip(table["module"], table["phase"], strict=True)}
    for block in (0, 1):
        for part in ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down", "mlp_norm"):
            assert (f"blocks.{block}.{part}", "forward") in kernels_of
            assert (f"blocks.{block}.{part}", "backward") in kernels_of
            assert ((f"blocks.{block}.{part}", "recompute") in kernels_of) == (block == 0)
    assert (breakdown.OPTIMIZER, "optimizer") in kernels_of
    assert (breakdown.LOSS, "backward") in kernels_of
    assert ("embedding", "backward") in kernels_of


def test_each_linear_layer_multiplies_once_forward_and_twice_backward(trained):
    study, _ = trained
    table = study.tables["kernels"]
    for phase, calls in (("forward", 1), ("backward", 2)):
        here = (
            (table["name"] == "aten::mm")
            & (table["module"] == "blocks.1.mlp.down")
            & (table["phase"] == phase)
        )
        assert table["calls"][here].sum() == calls


def test_memory_has_its_roles_and_the_estimate_beside_it(trained):
    study, _ = trained
    peaks = breakdown.peak(study)
    assert set(peaks) == set(breakdown.ROLES)
    parameters, gradients = peaks["parameters"], peaks["gradients"]
    assert gradients[0] == gradients[1] > 0  # every weight has its gradient when AdamW begins
    assert parameters[0] >= parameters[1] > 0  # the estimate knows one rotary table, not one each
    assert peaks["optimizer"][0] == pytest.approx(peaks["optimizer"][1], rel=0.01)
    memory = study.tables["memory"]
    assert memory["activations"].max() > 0 and np.isfinite(peaks["activations"][1])
    assert memory["gradients"][0] == memory["gradients"][-1] == 0  # freed after each step
    totals = sum(memory[role] for role in breakdown.ROLES)
    assert totals.max() == sum(size for size, _ in peaks.values())


def test_the_trace_opens_as_one_and_holds_the_ranges_of_the_modules(trained):
    _, path = trained
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    names = {event["name"] for event in events}
    assert {"workbench step", "module blocks.0.mlp", "module (loss)", "aten::mm"} <= names


def test_two_configurations_are_two_studies_aligned_by_module(runner, small, tmp_path):
    deeper = msgspec.structs.replace(small, model=small.model | {"n_layers": 3})
    first, second = profile(runner, small, deeper)
    changes = {change.module: change for change in breakdown.difference(first, second)}
    assert np.isnan(changes["blocks.2"].before_us) and changes["blocks.2"].after_us > 0
    assert changes["blocks.0.mlp"].before_us > 0 and changes["blocks.0.mlp"].after_us > 0
    assert {str(phase) for phase in first.tables["kernels"]["phase"]} == {"forward", "step"}
    configurations = [
        msgspec.json.decode(study.request["configuration"], type=type(small))
        for study in (first, second)
    ]
    assert configurations[1].model["n_layers"] == 3
    hdf5.save(runner.session, tmp_path / "kept.h5")
    loaded = breakdown.profiles(hdf5.load(tmp_path / "kept.h5"))[-1]
    assert breakdown.by(loaded, "module") == breakdown.by(second, "module")


def test_the_model_is_left_as_it_was(runner, small):
    """No hook and no mark stays behind: the same arm steps on, and is profiled again alike."""
    first, second = profile(runner, small)[0], profile(runner, small)[0]
    calls = [breakdown.by(study, "name") for study in (first, second)]
    assert {name: n for name, (n, _) in calls[0].items()} == {
        name: n for name, (n, _) in calls[1].items()
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"configurations": []}, "configurations: none was given"),
        ({"steps": 0}, "steps = 0 is outside of 1 to 100"),
        ({"traces": ["a", "b"]}, "traces: 2 files for 1 configuration; give a file"),
        ({"traces": ["/nowhere/at/all.json"]}, "/nowhere/at/all.json: there is no folder"),
    ],
)
def test_what_cannot_be_profiled_is_a_mistake_in_words(runner, small, options, sentence):
    since = len(runner.messages)
    runner.send(Profile(**{"configurations": [small], **options}))
    assert runner.finish().reason == "failed"
    (failure,) = (m for m in runner.messages[since:] if isinstance(m, protocol.Failure))
    assert failure.kind == "mistake" and failure.sentence.startswith(sentence)


def test_a_profile_ends_when_it_is_cancelled_and_leaves_no_study(runner, small):
    before = len(runner.session.studies)
    runner.send(Profile(configurations=[small] * 2, steps=100))
    runner.until(protocol.SegmentStarted)
    runner.runner.cancel(HANG_S)
    assert runner.finish().reason == "cancelled"
    assert len(runner.session.studies) == before


def test_a_users_own_model_is_profiled_and_run_only_as_often_as_it_is_built(shared, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "import pathlib, torch\n\ndef build():\n"
        "    with open(pathlib.Path(__file__).with_suffix('.log'), 'a') as log:\n"
        "        log.write('built\\n')\n"
        "    return torch.nn.Linear(3, 3), torch.zeros(1, 3), lambda y, x: y.square().mean()\n"
    )
    configuration = Configuration(
        family="own", preset="file", workload="train", model={"source": str(path)}
    )
    (study,) = profile(shared, configuration)
    table = study.tables["kernels"]
    assert {"forward", "backward", "optimizer"} <= set(map(str, table["phase"]))
    assert len(path.with_suffix(".log").read_text().splitlines()) == 2, "weights, and modules"
