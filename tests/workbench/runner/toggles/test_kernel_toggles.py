"""One switch for every operator: what it needs to be called at all, and what shows that it ran."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from built_arms import CPU, blocked, configuration, evidence_of, stepped

import kernels
from kernels import hardware
from kernels.core import triton_helpers
from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.config.availability import why_blocked
from workbench.runner.config.resolve import availability, resolve
from workbench.runner.toggles import Trait, _effects, all_toggles, triton
from workbench.runner.toggles._kernel_toggle import with_triton
from workbench.runner.toggles.triton_linear import needs_few_rows

ELSEWHERE = {  # operators that a toggle of another name chooses
    "attention": "attention",
    "add_rms_norm": "fused_add_norm",
    "fused_linear": "fused_linear",
    "rope_to_cache": "fused_cache",
    "qkv_rope": "fused_heads",
    "linear_cross_entropy": "fused_loss",
    "quantized_matmul": "quantization",
}
FIELDS = {
    "hydra": (
        {},
        {"ccgqa": True},
        {"mixture_of_depths": True},
        {"mixture_of_depths": True, "depth_every": 1},
        {"mixture_of_recursions": True},
        {"mixture_of_recursions": True, "recursion_routing": "token"},
    ),
    "mamba2": ({}, {"attention_every": 0}, {"n_layers": 1, "attention_every": 1}),
    "adaattn": ({}, {"adaptive_rank": False}, {"allow_fp8": True}),
    "mahia": ({}, {"use_fourier": False}, {"use_moe": True}),
    "moe": ({}, {"num_shared_experts": 1}),
}
CASES = [
    (family, fields, workload)
    for family, variants in FIELDS.items()
    for fields in variants
    for workload in FAMILIES[family].workloads
]


def name(operator: str) -> str:
    made = f"triton_{operator}" in all_toggles()
    return f"triton_{operator}" if made else f"kernel_{operator}"


CALLED = frozenset[str]().union(
    *(
        family.operators(config, workload)
        for family in FAMILIES.values()
        if family.operators is not None
        for config in family.presets.values()
        for workload in family.workloads
    )
)


@pytest.mark.parametrize("operator", kernels.OPS)
def test_every_operator_that_a_family_calls_has_a_toggle_of_its_implementations(operator):
    toggle = all_toggles().get(ELSEWHERE.get(operator) or name(operator))
    if toggle is None:
        assert operator not in CALLED
    elif operator not in ELSEWHERE:
        own = kernels.OPS[operator].implementations
        measured = {"auto"} if "triton" in own else set()  # elsewhere "follow" is this
        assert set(toggle.options) == {"follow", *own} | measured


@pytest.mark.sample(15)
@pytest.mark.parametrize(("family", "fields", "workload"), CASES)
def test_a_family_says_beforehand_which_operators_a_step_calls(family, fields, workload):
    switched = {"fused_loss": "chunked", "fused_add_norm": "torch", "precision": "bf16"}
    requested = configuration(family, workload, model=fields)
    usable = {
        toggle: option
        for toggle, option in switched.items()
        if not blocked(requested, toggle, option)
    }
    arm = stepped(configuration(family, workload, model=fields, toggles=usable))
    called = set(arm.record.usage)
    operators = FAMILIES[family].operators(arm.situation.config, workload)
    replacing = {  # toggles whose operator replaces other operators
        toggle: "torch"
        for toggle in ("fused_linear", "fused_cache", "fused_heads")
        for operator in [next(name for name, chosen in ELSEWHERE.items() if chosen == toggle)]
        if operator in operators
    }
    if replacing:
        fused = configuration(family, workload, model=fields, toggles=usable | replacing)
        called |= set(stepped(fused).record.usage)
    assert called == operators


@pytest.mark.parametrize(
    ("family", "workload", "toggle", "option", "operator", "status"),
    [
        ("mahia", "forward", "kernel_fourier_mix", "torch", "fourier_mix", "no effect"),
        ("mahia", "forward", "kernel_fourier_mix", "matmul", "fourier_mix", "effective"),
        ("adaattn", "forward", "kernel_low_rank", "torch", "low_rank", "effective"),
        ("adaattn", "forward", "triton_adaptive_attention", "manual", "adaptive_attention",
         "effective"),
        ("mamba2", "decode", "triton_ssd_step", "torch", "ssd_step", "as default"),
        ("hydra", "decode", "triton_linear", "torch", "linear", "as default"),
        ("moe", "train", "triton_moe_gating", "torch", "moe_gating", "as default"),
        ("moe", "train", "triton_moe_experts", "grouped", "moe_experts", "no effect"),
        ("moe", "train", "triton_moe_experts", "dense", "moe_experts", "effective"),
        ("moe", "train", "fused_loss", "chunked", "linear_cross_entropy", "effective"),
        ("mamba2", "prefill", "fused_add_norm", "torch", "add_rms_norm", "effective"),
        ("hydra", "train", "fused_add_norm", "torch", "add_rms_norm", "effective"),
        ("adaattn", "decode", "fused_add_norm", "torch", "add_rms_norm", "effective"),
        ("moe", "decode", "fused_cache", "torch", "rope_to_cache", "effective"),
        ("adaattn", "forward", "fused_heads", "torch", "qkv_rope", "effective"),
    ],
)  # fmt: skip
def test_an_implementation_that_ran_is_effective_and_one_that_did_not_is_told(
    family, workload, toggle, option, operator, status
):
    precision = "bf16" if operator == "linear" else "fp32"
    toggles = {toggle: option, "precision": precision}
    arm = stepped(configuration(family, workload, toggles=toggles))
    evidence = evidence_of(arm, toggle)
    calls = arm.record.usage[operator][option]
    recorded = "the recorded call" if calls == 1 else f"all {calls} recorded calls"
    ran = f"{operator}: {recorded} used {option}"
    if status == "effective":
        assert (evidence.status, evidence.text) == (status, ran)
    else:
        assert evidence.status == status and evidence.text.startswith(f"{ran}, the same as ")
    arm.record.usage[operator]["another"] = 1
    assert evidence_of(arm, toggle).status == "no effect"
    assert "another 1" in evidence_of(arm, toggle).text
    del arm.record.usage[operator]
    assert evidence_of(arm, toggle).text == f"this model never calls {operator}"


@pytest.mark.parametrize("shared", ["on", "auto"])
@pytest.mark.parametrize(
    ("family", "toggle", "option", "operator"),
    [
        ("hydra", "fused_loss", "chunked", "linear_cross_entropy"),
        ("hydra", "fused_add_norm", "torch", "add_rms_norm"),
        ("hydra", "triton_rope", "torch", "rope"),
        ("adaattn", "kernel_low_rank", "torch", "low_rank"),
    ],
)
def test_the_choice_of_an_operator_is_stronger_than_that_for_all(
    family, toggle, option, operator, shared
):
    toggles = {toggle: option, "triton": shared}
    situation = resolve(configuration(family, "train", toggles=toggles), CPU)
    assert _effects.kernel_choices(situation)[operator] == option
    assert _effects.kernel_choices(situation)["rms_norm"] == {"on": "triton"}.get(shared, shared)


def test_an_option_that_may_run_a_triton_kernel_says_so(monkeypatch):
    """Conflicts with these options depend on it, and the option that a kernel's failure names."""
    monkeypatch.setattr(triton_helpers, "DISABLED", "A_VARIABLE")
    for toggle in all_toggles().values():
        traits = {option for option, shown in toggle.traits.items() if Trait.TRITON in shown}
        if toggle.brings:
            assert traits == ({"on"} if toggle.brings in with_triton() else set()), toggle.name
            continue
        operator = {toggle_name: op for op, toggle_name in ELSEWHERE.items()}.get(
            toggle.name, toggle.operators[0] if len(toggle.operators) == 1 else ""
        )
        if operator not in kernels.OPS or toggle.name == "quantization":
            continue
        expected = {
            option
            for option, implementation in kernels.OPS[operator].implementations.items()
            if "A_VARIABLE" in (implementation.missing("cuda") or "") and option in toggle.options
        } - {"flex"}  # torch generates its kernel
        if "triton" in expected and "auto" in list(toggle.options)[1:]:
            expected.add("auto")
        assert traits == expected, toggle.name


@pytest.mark.parametrize(
    ("toggles", "tunes"),
    [
        ({"fused_loss": "triton_small"}, True),
        ({"triton_moe_experts": "triton_grouped"}, True),
        ({"triton_rope": "auto"}, True),
        ({"fused_loss": "chunked"}, False),
    ],
)
def test_kernels_are_tuned_and_not_recorded_wherever_a_triton_kernel_may_run(toggles, tunes):
    situation = resolve(configuration("moe", "train", toggles=toggles), CPU)
    on_gpu = dataclasses.replace(situation, device=torch.device("cuda"))
    with hardware.imagined((9, 0)):
        assert (why_blocked("kernel_tuning", "on", on_gpu) is None) == tunes
        recording = why_blocked("torchscript", "trace", on_gpu)
    assert ("not Triton kernels" in (recording.reason if recording else "")) == tunes


def test_the_choice_for_all_operators_does_not_count_what_their_own_toggles_choose():
    own = {name: "triton" for name in all_toggles() if name.startswith("triton_")}
    arm = stepped(configuration("hydra", "train", toggles={"fused_loss": "chunked"}))
    arm.record.usage = {name: {"triton": 2} for name in arm.record.usage if name != "attention"}
    arm.kernel_choices |= dict.fromkeys(arm.record.usage, "triton")
    toggles = arm.situation.configuration.toggles  # as if Triton kernels had run
    toggles |= own | {"triton": "on", "fused_loss": "triton"}
    evidence = evidence_of(arm, "triton")
    assert evidence.text == "no operator of this model uses this setting"
    assert evidence.status == "no effect"
    toggles["triton_rope"] = "follow"
    evidence = evidence_of(arm, "triton")
    assert (evidence.status, evidence.text) == ("effective", "Triton ran for rope")


def test_measured_choices_that_are_those_of_pytorch_are_no_effect(monkeypatch):
    arm = stepped(configuration("hydra", "train"))
    arm.situation.configuration.toggles["triton"] = "auto"
    followers = [name for name in arm.record.usage if name != "attention"]
    arm.kernel_choices |= dict.fromkeys(followers, "auto")
    arm.record.reasons |= dict.fromkeys(followers, ("torch", f"{kernels.MEASURED}: torch 1 us"))
    evidence = evidence_of(arm, "triton")
    assert evidence.status == "no effect"
    assert evidence.text.endswith("; all of them run the same with this setting off")
    monkeypatch.setattr(triton, "selecting_the_same", lambda *_: {*followers[1:]})
    evidence = evidence_of(arm, "triton")
    assert evidence.status == "effective"
    assert evidence.text.startswith(f"{followers[0]}: chose PyTorch")


def test_what_a_family_never_calls_is_blocked_for_good():
    requested = configuration("moe")
    for toggle in ("triton_ssd_scan", "kernel_fourier_mix", "fused_add_norm", "triton_geglu"):
        why = blocked(requested, toggle, "torch")
        assert why.reason == "Mixture of experts never uses it"
        assert why.absent and not why.set


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("family", "fields", "toggle", "option", "reason", "fix"),
    [
        ("mamba2", {}, "triton_ssd_step", "torch",
         "Mamba-2 hybrid uses it only in another workload", {"workload": "decode"}),
        ("hydra", {}, "triton_qk_norm_rope", "torch",
         "HYDRA with these fields never uses it", {"ccgqa": "on"}),
        ("hydra", {}, "triton_token_router", "torch",
         "HYDRA with these fields never uses it",
         {"mixture_of_depths": "on", "workload": "train"}),
        ("mamba2", {"attention_every": 0}, "triton_rope", "torch",
         "Mamba-2 hybrid with these fields never uses it", {"attention_every": "2"}),
    ],
)  # fmt: skip
def test_what_another_choice_would_call_is_blocked_with_that_choice(
    family, fields, toggle, option, reason, fix
):
    requested = configuration(family, model=fields)
    why = blocked(requested, toggle, option)
    assert (why.reason, why.set, why.absent) == (reason, fix, False)
    toggles = {name: option for name, option in fix.items() if name != "workload"}
    workload = fix.get("workload", "forward")
    fixed = configuration(family, workload, model=fields, toggles={toggle: option, **toggles})
    assert availability(fixed, CPU).problems == []
    assert evidence_of(stepped(fixed), toggle).status == "as default"


@pytest.mark.parametrize(
    ("family", "toggle", "field"),
    [("mahia", "triton_moe_experts", "Experts"), ("moe", "triton_swiglu", "Shared experts")],
)
def test_what_a_field_would_call_is_blocked_with_that_field(family, toggle, field):
    why = blocked(configuration(family), toggle, "torch")
    assert field in why.fix and not why.absent and not why.set


def test_no_addition_is_fused_where_every_block_is_checkpointed():
    toggles = {"fused_add_norm": "torch", "checkpointing": "full"}
    evidence = evidence_of(
        stepped(configuration("mamba2", "train", toggles=toggles)), "fused_add_norm"
    )
    assert evidence.status == "no effect"
    assert evidence.text == "no addition was fused: 4 blocks are checkpointed"


def test_a_fused_loss_and_its_gradients_are_those_of_the_logits():
    plain = stepped(configuration("moe", "train"))
    fused = stepped(configuration("moe", "train", toggles={"fused_loss": "chunked"}))
    batch = plain.batches.inputs + plain.batches.targets
    gradients = []
    for arm in (plain, fused):
        loss = arm.model.loss(*batch)
        loss.backward()
        grads = [p.grad.flatten() for p in arm.model.parameters() if p.grad is not None]
        gradients.append((loss.detach(), torch.cat(grads)))
    (loss, gradient), (fused_loss, fused_gradient) = gradients
    torch.testing.assert_close(fused_loss, loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(fused_gradient, gradient, rtol=1e-4, atol=1e-6)


def test_additions_that_linear_layers_include_are_not_fused_with_norms():
    toggles = {"precision": "bf16", "fused_linear": "torch", "fused_add_norm": "torch"}
    arm = stepped(configuration("hydra", "decode", toggles=toggles))
    assert evidence_of(arm, "fused_linear").status == "effective"
    evidence = evidence_of(arm, "fused_add_norm")
    assert (evidence.status, "linear layers include both" in evidence.text) == ("no effect", True)


@pytest.mark.parametrize(
    ("toggles", "settings", "reason"),
    [
        ({"precision": "fp32"}, {"batch": 2}, "made for 16 bits"),
        ({"precision": "bf16"}, {"batch": 17}, "up to 16 sequences, and a step has 17"),
        ({"precision": "bf16"}, {"batch": 16}, ""),
    ],
)
def test_the_kernel_for_few_rows_says_what_it_needs(toggles, settings, reason):
    wanted = Configuration(
        family="hydra", preset="tiny", workload="decode", settings=settings, toggles=toggles
    )
    situation = resolve(wanted, CPU)
    blocked = needs_few_rows("triton", situation)
    assert (blocked is None) if not reason else (blocked is not None and reason in blocked.reason)


@pytest.mark.parametrize(
    ("family", "operator", "toggle", "title", "workload"),
    [
        ("hydra", "rope", "fused_cache", "fused cache writes", "decode"),
        ("adaattn", "qk_norm_rope", "fused_cache", "fused cache writes", "decode"),
        ("hydra", "swiglu", "fused_linear", "fused linear layers", "decode"),
        ("hydra", "swiglu", "fused_linear", "fused linear layers", "forward"),
        ("adaattn", "qk_norm_rope", "fused_heads", "fused projection of heads", "forward"),
    ],
)
def test_an_operator_that_another_option_includes_is_not_called_with_the_reason(
    family, operator, toggle, title, workload
):
    toggles = {"precision": "bf16", toggle: "torch", name(operator): "torch"}
    finding = evidence_of(stepped(configuration(family, workload, toggles=toggles)), name(operator))
    text = f"no step called {operator}, which is a part of {title}"
    assert (finding.status, finding.text) == ("no effect", text)


def test_heads_that_round_their_keys_do_not_write_them_directly():
    arm = stepped(configuration("adaattn", "decode", toggles={"fused_cache": "torch"}))
    evidence = evidence_of(arm, "fused_cache")
    assert (evidence.status, "rounded before" in evidence.text) == ("no effect", True)


def test_quantized_layers_are_not_fused():
    toggles = {"precision": "bf16", "fused_linear": "torch", "quantization": "int8_weight_only"}
    arm = stepped(configuration("hydra", "decode", toggles=toggles))
    evidence = evidence_of(arm, "fused_linear")
    assert (evidence.status, "quantized weights" in evidence.text) == ("no effect", True)
