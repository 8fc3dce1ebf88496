"""An attention backend is blocked beforehand where it cannot do what the configuration asks."""

import pytest
import torch
from built import blocked, stepped

from sessions.model import Configuration
from workbench.runner.toggles import attention
from workbench.runner.toggles._toggle import NEEDS_GPU


@pytest.mark.parametrize(("family", "itself"), [("adaattn", True), ("hydra", False)])
def test_a_model_that_names_its_backend_itself_is_told_from_what_auto_chose(family, itself):
    arm = stepped(Configuration(family=family, preset="tiny"), "forward")
    finding = attention.TOGGLE.evidence("auto", arm.observed())
    assert ("the model selects this itself" in finding.text) == itself
    assert finding.status == ("no effect" if itself else "effective")


@pytest.mark.parametrize("backend", ["sdpa_flash", "sdpa_cudnn", "flash4"])
@pytest.mark.parametrize("trains", [False, True])
def test_a_backend_of_16_bits_refuses_single_precision_on_a_gpu(backend, trains):
    reason = attention._refuses(backend, "cuda", trains, False, 0, torch.float32)
    assert "supports only float16 and bfloat16, not torch.float32" in reason


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_flex_attention_refuses_a_cache_and_on_the_cpu_gradients(device_type):
    ask = attention._refuses
    assert "kv_length" in ask("flex", device_type, False, True, 0, torch.float32)
    trained = ask("flex", device_type, True, False, 0, torch.float32)
    assert trained == ("flex has no backward pass on the CPU" if device_type == "cpu" else None)
    assert ask("triton", device_type, True, False, 0, torch.float32) is None


def test_without_a_gpu_all_backends_that_need_a_gpu_are_blocked_for_one_reason():
    """The lock of the toggle listed eight sentences that said the same of eight backends."""
    requested = Configuration(
        family="hydra", preset="tiny", settings={"batch": 1, "sequence": 8}, toggles={}
    )
    options = blocked(requested, "train")["attention"]
    of_gpu = {why.reason_with_fix for why in options.values() if "CUDA GPU" in why.reason}
    assert of_gpu == {NEEDS_GPU.reason_with_fix}
    assert {"flash4", "sdpa_cudnn", "xformers", "triton"} <= options.keys()


def test_windows_that_cover_the_sequence_are_blocked_for_one_reason():
    requested = Configuration(
        family="hydra", preset="tiny", settings={"batch": 1, "sequence": 64}, toggles={}
    )
    options = blocked(requested, "forward")["window"]
    assert len({why.reason_with_fix for why in options.values()}) == 1 < len(options)


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_flex_attention_is_blocked_where_chunks_of_a_prompt_attend_to_a_cache(chunk):
    requested = Configuration(
        family="hydra", preset="tiny", settings={"batch": 1, "sequence": 8, "chunk": chunk}
    )
    options = blocked(requested, "prefill")["attention"]
    assert ("flex" in options) == (chunk < 8)
    if chunk < 8:
        assert "kv_length" in options["flex"].reason


def test_flex_attention_is_blocked_in_a_compiled_model_on_the_cpu():
    """PyTorch 2.15: HYDRA's numbers were wrong, and other graphs could not be compiled."""
    requested = Configuration(
        family="hydra", preset="tiny", settings={"batch": 1, "sequence": 8}, toggles={}
    )
    assert "flex" not in blocked(requested, "forward", compile="off")["attention"]
    why = blocked(requested, "forward", compile="default")["attention"]["flex"]
    assert "wrong results" in why.reason
    assert why.set == {"compile": "off"}


def test_a_backend_is_idle_where_adaptive_attention_has_its_own_kernel():
    arm = stepped(Configuration(family="adaattn", preset="tiny"), "forward")
    del arm.record.usage["attention"]
    arm.record.usage["adaptive_attention"] = {"triton": 4}
    finding = attention.TOGGLE.evidence("flash2", arm.observed())
    assert finding.status == "no effect"
    assert finding.text == "adaptive attention by Triton computes without an attention backend"
