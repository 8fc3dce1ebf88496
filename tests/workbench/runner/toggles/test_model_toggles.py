"""Toggles of a family's own options: when each can act, what shows that it did, and its numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from built_arms import CPU, blocked, configuration, evidence_of, stepped

import kernels
from kernels.hardware import imagined
from models import FAMILIES
from models.layers.ssm import SSM
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.numerics import comparison
from workbench.runner.toggles import all_toggles, ssd_chunk


def checked(requested):
    """The numerical check of an arm that was built anew."""
    situation = resolve(requested, CPU)
    return comparison.check(stepped(requested), situation)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("family", "toggles", "text"),
    [
        ("hydra", {"window": "32"}, "compared with window = 0: outputs differ by "),
        ("mamba2", {"window": "32"}, "compared with window = 0: outputs differ by "),
        ("moe", {"window": "32"}, "compared with window = 0: outputs differ by "),
        ("mahia", {"diffusion_steps": "8"}, "times the FLOPs"),
        ("mahia", {"dynamic_depth": "all"}, "times the FLOPs"),
        ("adaattn", {"adaptive_rank": "off"}, "low_rank by subspace: 0 calls instead of 1"),
        ("adaattn", {"adaptive_precision": "off"}, "operators instead of"),
        ("moe", {"in_place": "on"}, "12 additions so far allocated no new memory"),
        ("moe", {"reuse_buffers": "on"}, "12 additions so far allocated no new memory"),
    ],
)
def test_an_option_shows_in_the_model_and_its_numbers_are_right(family, toggles, text):
    sequence = 32 if family == "mahia" else 40
    requested = configuration(family, batch=4, sequence=sequence, toggles=toggles)
    arm = stepped(requested)
    (toggle,) = toggles
    evidence = evidence_of(arm, toggle)
    assert evidence.status == "effective" and text in evidence.text
    judged = comparison.check(arm, resolve(requested, CPU))
    assert judged.ok, judged.text


@pytest.mark.parametrize(
    ("family", "toggles", "note"),
    [
        ("mahia", {"diffusion_steps": "8"}, "diffusion_steps = 3"),
        ("hydra", {"window": "32"}, "window = 0"),
    ],
)
def test_an_option_that_the_model_does_not_heed_is_told(family, toggles, note, monkeypatch):
    (toggle,) = toggles
    arm = stepped(configuration(family, sequence=32 if family == "mahia" else 40, toggles=toggles))
    plain = FAMILIES[family].share(arm.situation.base, arm.plain_weights())
    monkeypatch.setattr(arm, "model", plain.eval())
    evidence = evidence_of(arm, toggle)
    assert evidence.status == "no effect"
    assert evidence.text == f"outputs and operators are identical to those with {note}"


@pytest.mark.sample(4)
@pytest.mark.parametrize("workload", ["prefill", "decode", "train"])
@pytest.mark.parametrize("family", ["hydra", "mamba2", "moe"])
def test_a_window_is_the_same_in_training_and_with_a_cache(family, workload):
    requested = configuration(family, workload, sequence=40, toggles={"window": "32"})
    judged = checked(requested)
    assert judged.ok, judged.text


def test_what_lies_behind_the_window_changes_nothing():
    arm = stepped(configuration("hydra", sequence=40, model={"n_layers": 1},
                                toggles={"window": "32"}))  # fmt: skip
    (tokens,) = arm.batches.inputs
    with torch.no_grad():
        before = arm.model(tokens)
        for position, same in ((0, True), (20, False)):
            other = tokens.clone()
            other[:, position] = (other[:, position] + 1) % 256
            after = arm.model(other)
            assert torch.equal(after[:, 32:], before[:, 32:]) is same


def test_a_window_that_leaves_nothing_out_is_blocked():
    why = blocked(configuration("hydra", sequence=32), "window", "32")
    assert why.reason == "the window covers the complete sequence of 32 tokens"
    assert not why.absent
    assert blocked(configuration("hydra", sequence=33), "window", "32") is None
    assert blocked(configuration("hydra", "decode", sequence=29), "window", "32") is None
    assert blocked(configuration("mahia"), "window", "32").absent


def test_arms_that_differ_in_no_weight_share_them():
    arms = VariantCache()
    plain = stepped(configuration("mahia", batch=4), arms)
    for toggles in ({"diffusion_steps": "1"}, {"dynamic_depth": "quarter"}):
        other = stepped(configuration("mahia", batch=4, toggles=toggles), arms)
        for name, weight in other.model.weights().items():
            assert plain.model.weights()[name] is weight
    other = stepped(configuration("mahia", batch=4, toggles={"use_fourier": "off"}), arms)
    assert other.model.head.weight is not plain.model.head.weight


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_that_weights_are_said_not_to_depend_on_change_none(family):
    made = FAMILIES[family]
    config = made.presets["tiny"]
    shapes = {name: tuple(p.shape) for name, p in made.build(config).weights().items()}
    values = {"window": 5, "diffusion_steps": 1, "capacity": 0.9, "rank_ratio": 0.9}
    free = [field for field in made.fields() if not field.weights]
    assert free
    for field in free:
        value = values.get(field.name, True)
        changed = made.configure("tiny", {field.name: value})
        assert changed != config and made.of_weights(changed) == made.of_weights(config)
        shapes_by_name = {name: tuple(p.shape) for name, p in made.build(changed).weights().items()}
        assert shapes_by_name == shapes
        seeds = [made.materialise(c, seed=3).weights() for c in (config, changed)]
        assert all(torch.equal(weight, seeds[1][name]) for name, weight in seeds[0].items())


def test_a_share_that_takes_as_many_samples_as_another_is_blocked():
    why = blocked(configuration("mahia", batch=1), "dynamic_depth", "quarter")
    assert why.reason == "a layer computes 1 of 1 sample, the same as with 0.5"
    assert blocked(configuration("mahia", batch=4), "dynamic_depth", "quarter") is None


def test_a_rank_that_does_not_adapt_blocks_how_low_it_may_go():
    why = blocked(configuration("adaattn", toggles={"adaptive_rank": "off"}), "low_rank", "half")
    assert why.set == {"adaptive_rank": "on"}
    assert blocked(configuration("adaattn"), "low_rank", "half") is None


def test_where_a_stream_is_added_to_is_for_inference_and_one_place_only():
    for toggle in ("in_place", "reuse_buffers"):
        why = blocked(configuration("moe", "train"), toggle, "on")
        assert why.set == {"workload": "forward"}
        assert blocked(configuration("moe", "train"), toggle, "off") is None
    why = blocked(configuration("moe", toggles={"in_place": "on"}), "reuse_buffers", "on")
    assert "choose one" in why.reason and why.set == {"in_place": "follow"}


def test_additions_that_took_new_memory_are_told():
    amp = {"in_place": "on", "precision": "amp_bf16"}
    evidence = evidence_of(stepped(configuration("moe", toggles=amp)), "in_place")
    assert evidence.status == "no effect"
    assert evidence.text.endswith("the residual stream has a wider dtype than the branches")
    amp = {"reuse_buffers": "on", "precision": "amp_bf16"}
    assert (
        evidence_of(stepped(configuration("moe", toggles=amp)), "reuse_buffers").status
        == "effective"
    )


@pytest.mark.parametrize("workload", ["forward", "train", "prefill"])
def test_scans_in_other_chunks_give_the_same_and_show(workload, monkeypatch):
    requested = configuration("mamba2", workload, sequence=40, toggles={"ssd_chunk": "16"})
    taken, scan = [], kernels.ssd_scan
    monkeypatch.setattr(
        kernels, "ssd_scan", lambda *args, chunk: taken.append(chunk) or scan(*args, chunk=chunk)
    )
    arm = stepped(requested)
    assert set(taken) == {16}
    evidence = evidence_of(arm, "ssd_chunk")
    assert evidence.text == "chunks of 16 in 4 mixers; recorded calls: torch 4"
    assert evidence.status == "effective"
    judged = comparison.check(arm, resolve(requested, CPU))
    assert judged.ok and judged.relative_error < 1e-6
    for module in arm.model.modules():
        if isinstance(module, SSM):
            module.chunk = None
    assert evidence_of(arm, "ssd_chunk").text == "no scan used chunks of 16"


def test_chunks_that_change_nothing_are_blocked_or_told():
    assert blocked(configuration("mamba2"), "ssd_chunk", "16").reason.startswith(
        "one chunk holds 16 tokens"
    )
    assert blocked(configuration("mamba2", "decode"), "ssd_chunk", "16").set == {
        "workload": "forward"
    }
    assert blocked(configuration("hydra"), "ssd_chunk", "16").absent
    own = stepped(configuration("mamba2", sequence=70, toggles={"ssd_chunk": "64"}))
    assert evidence_of(own, "ssd_chunk").status == "no effect"


@pytest.mark.parametrize(
    ("precision", "chunk", "default"),
    [
        ("bf16", "64", True),  # the only chunk of the Triton kernel in half precision
        ("amp_bf16", "64", True),
        ("fp32", "16", True),  # its default for large states in FP32
        ("fp32", "32", False),
    ],
)
def test_the_default_chunk_of_the_triton_kernel_is_no_effect(precision, chunk, default):
    toggles = {"ssd_chunk": chunk, "precision": precision}
    fields = {"d_state": 64}  # 64 x 32 numbers per head
    arm = stepped(configuration("mamba2", sequence=70, model=fields, toggles=toggles))
    arm.record.usage["ssd_scan"] = {"triton": 4}
    evidence = evidence_of(arm, "ssd_chunk")
    if default:
        expected = ("no effect", f"Triton uses chunks of {chunk} by default")
    else:
        expected = ("effective", f"chunks of {chunk} in 4 mixers; recorded calls: triton 4")
    assert (evidence.status, evidence.text) == expected
    arm.record.usage["ssd_scan"] = {"triton": 2, "torch": 2}
    mixed = "no effect" if chunk == "64" else "effective"
    assert evidence_of(arm, "ssd_chunk").status == mixed


def test_what_the_scan_s_kernel_refuses_is_blocked_with_pytorch():
    toggles = {"precision": "amp_bf16"}
    situation = resolve(configuration("mamba2", sequence=200, toggles=toggles), CPU)
    situation.configuration.toggles["triton"] = "on"
    on_gpu = dataclasses.replace(situation, device=torch.device("cuda"))
    with imagined((9, 0)):
        why = ssd_chunk.TOGGLE.blocked("32", on_gpu)
        assert why.reason == (
            "the Triton kernel supports chunks of 64 to 64 tokens for these sizes in bfloat16, "
            "not 32"
        )
        assert why.set == {"triton_ssd_scan": "torch"}
        assert ssd_chunk.TOGGLE.blocked("64", on_gpu) is None
        on_gpu.configuration.toggles["triton_ssd_scan"] = "torch"
        assert ssd_chunk.TOGGLE.blocked("32", on_gpu) is None
    assert set(all_toggles()["ssd_chunk"].options) == {"follow", "16", "32", "64", "128"}
