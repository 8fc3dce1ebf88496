"""Evidence calls the model beside its steps, and leaves no trace: steps continue as without it."""

from __future__ import annotations

import pytest
import torch
from built_arms import configuration, stepped
from stateful_models import KINDS, stateful
from variant_snapshot import SOME_FAMILIES, WORKLOADS, Snapshot

from workbench.runner.config.availability import blocked_options
from workbench.runner.config.resolve import resolve
from workbench.runner.distributed import world
from workbench.runner.experiments import checks
from workbench.runner.numerics import masked_inf
from workbench.runner.profiling import instrumented

CPU = torch.device("cpu")


def steps_of(requested, count=2):
    """Return a variant after some steps of its current round."""
    variant = stepped(requested)
    with variant.entered():
        variant.restart()
        for _ in range(count):
            variant.ready()
            variant.step()
    return variant


def evidence_leaves_state(variant, monkeypatch):
    calls = []
    call = instrumented.call
    monkeypatch.setattr(
        instrumented, "call", lambda *given, **more: calls.append(given) or call(*given, **more)
    )
    before = Snapshot(variant)
    variant.find_evidence()
    assert calls, "the evidence of this test must call the model"
    assert not before.differences(Snapshot(variant))


@pytest.mark.sample(13)
@pytest.mark.parametrize("workload", ["forward", "train"])
@pytest.mark.parametrize("kind", KINDS)
def test_evidence_leaves_the_state_of_a_users_model(kind, workload, tmp_path, monkeypatch):
    variant = steps_of(stateful(tmp_path, kind, workload, sdp_math="forbidden"))
    evidence_leaves_state(variant, monkeypatch)


@pytest.mark.parametrize(
    ("family", "workload"),
    WORKLOADS,
)
def test_evidence_leaves_the_state_of_a_bundled_model(family, workload, monkeypatch):
    requested = configuration(family, workload, toggles={"attention": "sdpa"})
    assert "sdpa" not in blocked_options(resolve(requested, CPU)).get("attention", {})
    evidence_leaves_state(steps_of(requested), monkeypatch)


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", ["adaattn", "moe"])
def test_evidence_leaves_a_rank_in_the_state_of_the_other_ranks(family, monkeypatch):
    toggles = {"attention": "sdpa", "data_parallel": "2"}
    variant = steps_of(configuration(family, "train", batch=2, toggles=toggles))
    try:
        evidence_leaves_state(variant, monkeypatch)
    finally:
        world.close()


def test_evidence_after_an_error_leaves_the_state(tmp_path, monkeypatch):
    variant = steps_of(stateful(tmp_path, "batch norm and a count", sdp_math="forbidden"))
    call, failed = instrumented.call, []

    def fail(*given, **more):
        call(*given, **more)
        failed.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(instrumented, "call", fail)
    before = Snapshot(variant)
    with pytest.raises(KeyboardInterrupt):
        variant.find_evidence()
    assert failed and not before.differences(Snapshot(variant))


@pytest.mark.parametrize("kind", KINDS)
def test_preparations_leave_the_state_of_a_users_model(kind, tmp_path):
    variant = steps_of(stateful(tmp_path, kind))
    variant.preparations.append(lambda given: instrumented.call(given, backward=True) or {})
    before = Snapshot(variant)
    with variant.entered():
        assert variant.prepare()
    assert not before.differences(Snapshot(variant))


@pytest.mark.parametrize(
    "kind", ["batch norm and a count", "a replaced buffer", "hooks with state"]
)
def test_looking_for_graph_breaks_leaves_the_state_of_a_users_model(kind, tmp_path):
    variant = steps_of(stateful(tmp_path, kind))
    before = Snapshot(variant)
    result = checks.fixed_graph(variant, [], lambda: 0, lambda: 0)
    assert "torch.compile would make" in result.evidence
    assert not before.differences(Snapshot(variant))


@pytest.mark.parametrize("kind", KINDS)
def test_looking_for_a_masks_infinities_leaves_the_state_of_a_users_model(kind, tmp_path):
    variant = steps_of(stateful(tmp_path, kind, "forward"))
    before = Snapshot(variant)
    with variant.entered():
        assert masked_inf.expected(variant, 3) == (0, 0, 0)
    assert not before.differences(Snapshot(variant))


@pytest.mark.parametrize("family", SOME_FAMILIES)
def test_looking_for_a_masks_infinities_leaves_the_state_of_a_bundled_model(family):
    variant = steps_of(configuration(family, "forward"))
    before = Snapshot(variant)
    with variant.entered():
        assert masked_inf.expected(variant, 3) == (0, 0, 0)
    assert not before.differences(Snapshot(variant))
