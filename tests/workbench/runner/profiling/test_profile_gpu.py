"""A profile on a GPU: kernel times add up to the GPU's time, roles to the allocator's peak."""

from __future__ import annotations

import msgspec
import pytest

from sessions.model import Configuration
from sessions.studies import breakdown, timeline
from workbench.protocol import Profile

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def busy() -> Configuration:
    """Return a training step that keeps the GPU busy: kernels far longer than their launches."""
    return Configuration(
        family="hydra",
        preset="base",
        workload="train",
        settings={"batch": 8, "sequence": 1024},
        toggles={"adamw": "fused"},
    )


def profile(runner, configuration, **toggles):
    toggles = {**configuration.toggles, **toggles}
    requested = msgspec.structs.replace(configuration, toggles=toggles)
    runner.send(Profile(configurations=[requested]))
    assert runner.finish().reason == "done", runner.describe()
    return breakdown.profiles(runner.session)[-1]


@pytest.fixture(scope="module")
def eager(shared, busy):
    return profile(shared, busy)


def test_kernel_times_add_up_to_the_steps_gpu_time(eager):
    facts = eager.facts
    assert breakdown.total_us(eager) == pytest.approx(facts["busy_us"], rel=0.03)
    assert facts["busy_us"] == pytest.approx(facts["step_us"], rel=0.03)
    waited = float(eager.tables["gaps"]["us"].sum())
    assert facts["busy_us"] + waited == pytest.approx(facts["profiled_us"], rel=0.03)


def test_the_timeline_has_every_kernel_its_launch_and_the_idle_time_between_them(eager):
    data = timeline.of(eager)
    kernels = data.of_kind(breakdown.STREAM_TRACK)
    calls = float(eager.tables["kernels"]["calls"].sum())
    steps = len(data.of_kind(breakdown.STEP_TRACK))
    assert len(kernels) == pytest.approx(calls * steps, rel=0.01)
    assert (data.launch[kernels] > 0).mean() > 0.99
    assert {lane.title for lane in data.lanes()} >= {"Modules", "CPU launches", "CPU thread 1"}
    busy = sum(row.total_us for row in data.statistics(0.0, data.end_us)) / steps
    assert busy == pytest.approx(eager.facts["busy_us"], rel=0.03)


def test_operators_lie_under_the_measured_roof(runner, busy):
    """Tensors of 100 MB: smaller ones stay in the GPU's cache, which the roof does not include."""
    large = msgspec.structs.replace(busy, settings={"batch": 32, "sequence": 1024})
    points = {point.name: point for point in breakdown.roof_points(profile(runner, large))}
    assert {"matrix product", "attention", "optimizer"} <= points.keys()
    wrong = {name: p for name, p in points.items() if p.us > 100 and not 0 < p.share < 1.3}
    assert not wrong


def test_every_kernel_is_given_to_a_module_forward_and_backward(eager):
    assert breakdown.unattributed(eager) < 0.01
    outside = breakdown.by(eager, "module").get(breakdown.OUTSIDE, (0.0, 0.0))[1]
    assert outside < 0.02 * breakdown.total_us(eager)
    phases = breakdown.by(eager, "phase")
    assert 1.5 < phases["backward"][1] / phases["forward"][1] < 3.0
    totals = breakdown.totals(eager)
    blocks = [totals[f"blocks.{n}"] for n in range(3)]
    assert max(blocks) < 1.1 * min(blocks)  # they do the same
    assert breakdown.by(eager, "kind")["matrix product"][1] > 0.3 * breakdown.total_us(eager)


def assert_roles_add_up(study):
    """To the allocator's peak, pools of graphs with it; and each role is what it must be."""
    peaks, most = breakdown.peak(study), breakdown.highest(study)
    total = sum(size for size, _ in peaks.values())
    assert total == pytest.approx(study.facts["peak_bytes"], rel=0.03)
    assert peaks["optimizer"][0] == pytest.approx(peaks["optimizer"][1], rel=0.03)
    assert most["gradients"] == pytest.approx(peaks["gradients"][1], rel=0.03)
    assert peaks["activations"][0] > 0.2 * total


def test_roles_add_up_to_the_allocators_peak(eager):
    assert_roles_add_up(eager)
    assert breakdown.peak(eager)["private_pools"][0] == 0


def test_steps_after_the_profiler_are_as_fast_as_before(eager):
    assert eager.facts["after_us"] == pytest.approx(eager.facts["step_us"], rel=0.03)


def test_own_kernels_are_seen_and_belong_to_their_modules(runner, busy):
    study = profile(runner, busy, triton="on", precision="amp_bf16")
    assert breakdown.unattributed(study) < 0.01
    table = study.tables["kernels"]
    own = [str(m) for n, m in zip(table["name"], table["module"], strict=True) if "rms" in str(n)]
    assert any(module.endswith("norm") for module in own)


def test_a_captured_step_is_told_by_module_and_its_pool_as_memory(runner, busy):
    study = profile(runner, busy, cuda_graphs="on", precision="amp_bf16")
    assert breakdown.unattributed(study) < 0.1
    assert study.facts["busy_us"] == pytest.approx(study.facts["step_us"], rel=0.05)
    assert_roles_add_up(study)
    assert "by role" in " ".join(breakdown.words(study))
    # The pool is no larger than the step needs, but for what its segments are rounded up.
    assert breakdown.peak(study)["private_pools"][0] < 0.25 * study.facts["peak_bytes"]
    assert breakdown.highest(study)["private_pools"] > 0.2 * study.facts["peak_bytes"]


@pytest.mark.parametrize(
    ("mode", "scope"), [("default", "model"), ("default", "blocks"), ("reduce-overhead", "model")]
)
def test_compiled_code_is_told_by_kernel_class_and_module(runner, busy, eager, mode, scope):
    study = profile(runner, busy, compile=mode, compile_scope=scope, precision="amp_bf16")
    assert breakdown.by(study, "kind")["fused by Inductor"][1] > 0
    assert breakdown.unattributed(study) < 0.1
    assert not breakdown.not_by_module(eager, study)
    assert breakdown.total_us(study) == pytest.approx(study.facts["busy_us"], rel=0.03)
    assert "innermost module" in " ".join(breakdown.words(study))
    assert_roles_add_up(study)


def test_a_step_that_is_compiled_and_captured_has_its_roles_too(runner, busy):
    study = profile(runner, busy, compile="default", cuda_graphs="on", precision="amp_bf16")
    assert_roles_add_up(study)
