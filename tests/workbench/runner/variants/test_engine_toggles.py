"""Toggles of the optimizer, of memory and of torch's flags: what took effect, and what did nothing.

What only a GPU can show is in test_engine_toggles_gpu.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from built import blocked, collect_evidence, stepped
from torch import nn

from models.execution import checkpointing
from sessions.model import Configuration
from workbench.runner.toggles import all_toggles, allocator
from workbench.runner.training import optimizers
from workbench.runner.training.trainer import Weights
from workbench.runner.variants.offload import Offload
from workbench.runner.workloads import all_workloads

IMAGES = Path(__file__).parents[3] / "examples" / "own_model.py"


def evidence(arm, toggle: str) -> tuple[str, str]:
    return collect_evidence(arm)[toggle]


# Checkpointing


def test_every_third_block_and_by_operator_say_what_they_recompute(small):
    arm = stepped(small, checkpointing="third")
    status, text = evidence(arm, "checkpointing")
    assert status == "effective"
    assert text.startswith("the backward pass recomputes 1 block of 2; for a")
    status, text = evidence(stepped(small, checkpointing="operators"), "checkpointing")
    assert status == "effective"
    assert text.startswith(
        "the backward pass recomputes 2 blocks of 2; for a short call autograd saves"
    )
    assert "kept outputs of operators: 8 of mm" in text


def test_a_policy_that_keeps_nothing_is_told(small, monkeypatch):
    monkeypatch.setattr(checkpointing, "_KEPT_OPERATORS", ())
    status, text = evidence(stepped(small, checkpointing="operators"), "checkpointing")
    assert status == "no effect" and "no operator's output was saved" in text


def test_what_a_policy_by_operator_cannot_see_is_said_to_be_computed_again(small):
    arm = stepped(small, checkpointing="operators")
    assert "not torch operators" not in evidence(arm, "checkpointing")[1]
    seen = {"triton": 4, "sdpa_flash": 2}
    arm.record.usage |= {"attention": {"flex": 1, **seen}, "ssd_scan": {"triton": 3}}
    arm.evidence = None
    text = evidence(arm, "checkpointing")[1]
    assert text.endswith(
        "; also recomputed, because they are not torch operators: attention by flex, "
        "ssd_scan by triton"
    )


def test_a_policy_by_operator_is_blocked_where_it_keeps_nothing_of_attention(small):
    why = blocked(small, attention="flex")["checkpointing"]
    assert set(why) == {"operators"} and why["operators"].set == {"attention": "sdpa"}
    assert "attention by flex is not a torch operator" in why["operators"].reason
    for backend in ("auto", "manual", "sdpa_flash", "triton"):
        assert "operators" not in blocked(small, attention=backend).get("checkpointing", {})


# The optimizer


class Bytes(torch.optim.Optimizer):
    """Moments of 8 bits, without the arithmetic."""

    def __init__(self, parameters, least):
        super().__init__(parameters, {})
        self._least = least

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                narrow = torch.uint8 if p.numel() >= self._least else torch.float32
                self.state[p] = {"exp_avg": torch.zeros_like(p, dtype=narrow), "step": 1}


@pytest.mark.parametrize(
    ("least", "status", "text"),
    [
        (4096, "effective", "1 of 2 tensors have 8-bit moments; the optimizer has 1.0 bytes"),
        (8192, "no effect", "0 of 2 tensors have 8-bit moments; the optimizer has 4.0 bytes"),
    ],
)
def test_moments_in_8_bits_are_looked_for_in_the_state(least, status, text):
    optimizer = Bytes([nn.Parameter(torch.zeros(64, 64)), nn.Parameter(torch.zeros(8))], least)
    optimizer.step()
    finding = all_toggles()["adamw"].evidence("8bit_torchao", SimpleNamespace(optimizer=optimizer))
    assert finding.status == status and finding.text.startswith(text)


@pytest.mark.parametrize("library", optimizers.EIGHT_BIT)
def test_a_library_that_is_missing_blocks_its_optimizer(small, monkeypatch, library):
    monkeypatch.setattr(optimizers, "installed", lambda name: False)
    why = blocked(small)["adamw"][f"8bit_{library}"]
    assert why.reason == f"needs {library}, which is not installed" and "quant" in why.fix


@pytest.mark.parametrize("library", optimizers.EIGHT_BIT)
def test_8_bit_adamw_follows_adamw_at_a_fraction_of_its_memory(library):
    pytest.importorskip(library)
    results, sizes = [], []
    for options in ({"fused": False}, {"eight_bit": library}):
        parameter = nn.Parameter(torch.linspace(-1, 1, 8192).view(64, 128))
        trainer = Weights({"w": parameter}).trainer(options, scales_loss=False)
        for _ in range(5):
            trainer.update((parameter - 0.5).square().sum())
        results.append(parameter.detach())
        sizes.append(optimizers.moments(trainer.optimizer).bytes)
    torch.testing.assert_close(results[1], results[0], atol=5e-4, rtol=0)
    assert sizes[0] >= 8 * 8192 > 0.5 * sizes[0] > sizes[1]


# Torch's own choice of an attention backend


def test_a_forbidden_backend_leaves_the_choice_to_the_next(small):
    arm = stepped(small, "forward", attention="sdpa", sdp_flash="forbidden")
    status, text = evidence(arm, "sdp_flash")
    assert (status, text) == ("effective", "2 SDPA calls ran math; with flash allowed: flash")
    assert torch.backends.cuda.flash_sdp_enabled(), "the flag was left behind"


def test_forbidding_what_would_not_be_chosen_is_told(small):
    arm = stepped(small, "forward", attention="sdpa", sdp_math="forbidden")
    status, text = evidence(arm, "sdp_math")
    assert status == "no effect"
    assert text == "torch would not choose math here: SDPA calls ran 2 flash"


def test_a_model_without_attention_is_told():
    own = Configuration(
        family="own", preset="file", model={"source": str(IMAGES)}, settings={"batch": 2}
    )
    status, text = evidence(stepped(own, "forward", sdp_flash="forbidden"), "sdp_flash")
    assert (status, text) == ("no effect", "this model never calls scaled_dot_product_attention")


def test_switches_that_cannot_act_say_why(small):
    why = blocked(small, "forward")["sdp_flash"]["forbidden"]
    assert why.set == {"attention": "sdpa"}
    left = blocked(small, "forward", attention="sdpa", sdp_flash="forbidden")
    assert left["sdp_math"]["forbidden"].set == {"sdp_flash": "allowed"}
    assert "needs a CUDA GPU" in left["sdp_cudnn"]["forbidden"].reason
    assert "sdp_flash" not in left


# cuDNN, the allocator


@pytest.mark.parametrize(
    ("source", "text"),
    [("own", "no convolution ran in cuDNN: 2 "), ("hydra", "this model calls no convolution")],
)
def test_timing_convolutions_that_cudnn_does_not_run_is_told(small, source, text):
    own = Configuration(family="own", preset="file", model={"source": str(IMAGES)})
    arm = stepped(own if source == "own" else small)
    with arm.entered():
        finding = all_toggles()["cudnn_benchmark"].evidence("on", arm.observed())
    assert finding.status == "no effect" and finding.text.startswith(text)


def test_only_segments_made_since_the_setting_is_in_force_prove_it(monkeypatch):
    earlier = {"address": 0, "total_size": 64 << 20, "is_expandable": True}
    segments = [earlier, {"address": 1 << 30, "total_size": 32 << 20, "is_expandable": False}]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(allocator, "_configure", lambda setting: None)
    build = SimpleNamespace(flags=[])
    toggle = all_toggles()["allocator"]
    toggle.apply("expandable", build)
    (setting,) = build.flags
    with setting():
        segments.append({"address": 2 << 30, "total_size": 1 << 20, "is_expandable": False})
    with setting():
        pass
    finding = toggle.evidence("expandable", build)
    assert finding.status == "no effect" and finding.text.startswith("0 of 1 MiB reserved since")
    earlier["total_size"] += 4 << 20
    segments.append({"address": 3 << 30, "total_size": 2 << 20, "is_expandable": True})
    finding = toggle.evidence("expandable", build)
    assert finding.status == "effective" and finding.text.startswith("6 of 7 MiB reserved since")


def test_timing_convolutions_is_for_models_that_may_have_them(small):
    why = blocked(small)["cudnn_benchmark"]["on"]
    assert why.absent and "no convolution that cuDNN computes" in why.reason
    own = Configuration(family="own", preset="file", model={"source": str(IMAGES)})
    why = blocked(own)["cudnn_benchmark"]["on"]
    assert "needs a CUDA GPU" in why.reason and not why.absent


@pytest.mark.parametrize(
    ("toggle", "option"), [("allocator", "expandable"), ("activation_offload", "on")]
)
def test_what_needs_a_gpu_says_so(small, toggle, option):
    why = blocked(small)[toggle][option]
    assert "GPU" in why.reason + why.fix


# Offloading activations


@pytest.fixture
def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def gradients(layers, compute, *batch):
    layers.zero_grad()
    compute(*batch).backward()
    return [parameter.grad.clone() for parameter in layers.parameters()]


def test_activations_go_to_the_host_and_come_back_the_same(layers):
    def compute(x):
        return layers(x).sum() + layers[0](x).sin().sum()

    x = torch.randn(512, 64)
    expected = gradients(layers, compute, x)
    offload = Offload(compute, layers.parameters())
    offloaded = gradients(layers, offload, x)
    assert all(map(torch.equal, offloaded, expected))
    hidden = 512 * 256 * 4
    # The input once, though two products save it; what GELU, the second product and sin need.
    assert (offload.moved_tensors, offload.moved_bytes) == (4, x.nbytes + 3 * hidden)
    assert offload.left_bytes == 0, "weights count as neither"


def test_a_tensor_that_was_written_to_is_copied_anew():
    x = torch.randn(256, 256, requires_grad=True)
    y = torch.randn(256, 256)

    def compute(x):
        first = (x * y).sum()
        y.mul_(2)
        return first + (x * y).sum()

    offload = Offload(compute, [x])
    expected = 3 * y
    offload(x).backward()
    assert offload.moved_tensors == 2
    torch.testing.assert_close(x.grad, expected)


def test_what_is_small_or_has_gaps_stays(layers):
    x = torch.randn(1024, 64)[::2]
    offload = Offload(lambda x: (x * layers[0].weight[:1]).sum(), layers.parameters())
    offload(x)
    assert (offload.moved_tensors, offload.left_bytes) == (0, x.nbytes)
    batches = SimpleNamespace(inputs=(x,), targets=())
    situation = SimpleNamespace(workload=all_workloads()["train"])
    observed = SimpleNamespace(compute=offload, situation=situation, batches=batches)
    finding = all_toggles()["activation_offload"].evidence("on", observed)
    assert finding.status == "no effect" and "no tensor of at least 64 KiB" in finding.text
    batches.inputs = (x.contiguous(),)
    offload(x)  # not in a step
    finding = all_toggles()["activation_offload"].evidence("on", observed)
    assert finding.status == "effective" and finding.text.startswith("128 KiB in 1 tensor move")
