"""Each check of the checklist on a built arm: passes what is right, fails what was planted."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
import torch

from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.experiments import checks
from workbench.runner.instruments.phases import PhaseTracker

CPU = torch.device("cpu")
WORKLOADS = ["forward", "train", "prefill", "decode"]


@pytest.fixture
def phases():
    return PhaseTracker(lambda phase: None)


@pytest.fixture
def build(small, phases):
    arms = VariantCache()
    small = msgspec.structs.replace(small, model=small.model | {"n_layers": 1})

    def build(workload="forward", **toggles):
        settings = small.settings | ({"new_tokens": 4} if workload == "decode" else {})
        configuration = msgspec.structs.replace(
            small, workload=workload, settings=settings, toggles=toggles
        )
        return arms.get(resolve(configuration, CPU), phases)

    return build


def plant(arm, hook):
    """Let ``hook(output)`` act on what the model's first block gives."""
    arm.model.blocks[0].register_forward_hook(lambda module, inputs, output: hook(output))


# Synchronization


@pytest.mark.parametrize(
    ("workload", "toggles"),
    [
        *((workload, {}) for workload in WORKLOADS),
        ("train", {"adamw": "foreach"}),
        ("train", {"adamw": "fused", "precision": "amp_bf16", "checkpointing": "full"}),
    ],
)
def test_a_step_that_waits_for_nothing_passes(build, workload, toggles):
    result = checks.no_syncs(build(workload, **toggles))
    assert (result.status, result.lines) == ("pass", []), result


def test_reading_adamws_count_of_steps_is_no_wait_because_it_lies_on_the_host(build, monkeypatch):
    arm = build("train", adamw="loop")
    monkeypatch.setattr(arm.trainer, "on_host", set)
    result = checks.no_syncs(arm)
    assert result.status == "fail" and "(item() needs values" in result.lines[0]


SYNCS = {
    "item": lambda x: x * x.mean().item(),
    "branch": lambda x: x + 1 if x.sum() > 0 else x,
    "nonzero": lambda x: x + x.nonzero().shape[0],
    "mask": lambda x: x + x[x > 0].sum(),
    "masked_select": lambda x: x + x.masked_select(x > 0).sum(),
    "tolist": lambda x: x + sum(x.flatten().tolist()),
    "cpu": lambda x: x + x.cpu().sum(),
    "numpy": lambda x: x + float(x.detach().numpy().sum()),
    "list": lambda x: x + torch.tensor([1.0], device=x.device),
    "as_tensor": lambda x: x + torch.as_tensor([1.0], device=x.device),
    "new_tensor": lambda x: x + x.new_tensor([1.0]),
    "to": lambda x: x + x.to("cpu", torch.float64).sum(),
    "asarray": lambda x: x + float(np.asarray(x.detach()).sum()),
    "print": lambda x: x + len(repr(x)),
    "format": lambda x: x + len(f"{x}"),
}


@pytest.mark.parametrize("name", SYNCS)
def test_a_step_that_would_wait_on_a_gpu_is_found_with_its_line(build, name):
    arm = build()
    plant(arm, SYNCS[name])
    result = checks.no_syncs(arm)
    assert result.status == "fail" and len(result.lines) == 1, result
    assert "test_checks.py:" in result.lines[0] and f'"{name}": lambda' in result.lines[0]
    assert "aten" not in result.lines[0], "no user wrote this name"
    assert result.evidence.endswith(", once per step")


class Waits(torch.autograd.Function):
    """Waits on its way back alone."""

    @staticmethod
    def forward(context, x):
        return x * 1

    @staticmethod
    def backward(context, gradient):
        return gradient * float(gradient.mean() * 0 + 1)


def test_a_wait_in_the_backward_pass_is_found_with_its_line(build):
    arm = build("train")
    plant(arm, Waits.apply)
    result = checks.no_syncs(arm)
    assert result.status == "fail" and "in backward: return gradient * float" in result.lines[0]


# Memory


@pytest.mark.parametrize("workload", WORKLOADS)
def test_steps_that_leave_nothing_behind_pass(build, workload):
    result = checks.steady_memory(build(workload), 8)
    assert result.status == "pass", result
    assert "8 steps leak no memory" in result.evidence and "the estimate of" in result.evidence


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_a_leak_is_found_to_the_byte(build, workload):
    arm, leaked = build(workload), []
    plant(arm, lambda x: leaked.append(x.detach().clone()) or x)
    result = checks.steady_memory(arm, 8)
    assert result.status == "fail"
    assert f"each step leaks {leaked[0].nbytes:,} bytes: " in result.evidence


def test_what_is_kept_once_or_freed_by_the_collector_is_no_leak(build):
    arm, stored = build(), {}

    def cycle(x):
        stored.setdefault("first", x.clone())
        ring = [x.clone()]
        ring.append(ring)
        return x

    plant(arm, cycle)
    assert checks.steady_memory(arm, 8).status == "pass"


@pytest.mark.parametrize("beside", ["cache", "workspaces"])
def test_memory_far_over_the_estimate_fails_whatever_lies_beside_it(build, beside, monkeypatch):
    arm = build()
    plant(arm, lambda x: x + torch.ones(10_000, 64).sum() * 0)
    estimate = dataclasses.replace(checks.footprint(arm.situation), **{beside: 1 << 30})
    monkeypatch.setattr(checks, "footprint", lambda situation: estimate)
    result = checks.steady_memory(arm, 4)
    assert result.status == "fail" and "at most 2 times is expected" in result.evidence


# Numbers


def test_a_wrong_kernel_fails_and_what_was_not_checked_does_not_pass(build, monkeypatch):
    arm = build()
    assert checks.right_numbers(arm).status == "pass"
    arm.model.register_forward_hook(lambda module, inputs, output: output * 1.001)
    result = checks.right_numbers(arm)
    assert result.status == "fail" and "relative error 0.001" in result.evidence

    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("workbench.runner.numerics.reference.Plain.model", no_memory)
    result = checks.right_numbers(arm)
    assert result.status == "not checked" and "Out of memory" in result.evidence


# Fixed graph


def watch_graph(arm, phases, count=2):
    with arm.entered(), arm.watched():
        checks.step(arm, 1)
    breaks = list(arm.compiles.breaks)

    def steps():
        with arm.entered():
            checks.step(arm, count)
        return count

    return checks.fixed_graph(arm, breaks, lambda: phases.events, steps)


def test_a_whole_graph_that_is_compiled_once_passes_until_it_is_compiled_again(
    build, phases, eager_backend
):
    arm = build(compile="default")
    arm.model.scale, grows = 1, 0

    def scale(module, inputs, output):
        module.scale += grows
        return output * module.scale

    arm.model.register_forward_hook(scale)
    result = watch_graph(arm, phases)
    assert result.status == "pass", result
    assert result.evidence == (
        "compiled without a graph break in the first step, and not again in 2 more steps"
    )
    grows = 1
    result = watch_graph(arm, phases)
    assert result.status == "fail"
    assert "compiled or captured " in result.evidence
    assert "in 2 steps after the first" in result.evidence
    assert any("scale == " in line for line in result.lines), result.lines


def test_a_graph_break_fails_with_its_line(build, phases, eager_backend):
    arm = build(compile="default")
    plant(arm, lambda x: print("here", end="") or x)
    result = watch_graph(arm, phases)
    assert result.status == "fail" and result.evidence.startswith("1 graph break in")
    assert 'print("here"' in result.lines[0] and "test_checks.py:" in result.lines[0]


def test_what_is_not_compiled_is_not_judged_but_told_what_compiling_would_find(build, phases):
    arm = build()
    plant(arm, SYNCS["branch"])
    result = watch_graph(arm, phases)
    assert result.status == "not applicable"
    assert result.evidence.startswith("nothing is compiled or captured; torch.compile would make")
    assert '"branch": lambda' in result.lines[0]
