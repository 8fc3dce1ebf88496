"""An attention backend is blocked beforehand where it cannot do what the configuration asks."""

import pytest
import torch

from workbench.runner.toggles import attention


@pytest.mark.parametrize("backend", ["sdpa_flash", "sdpa_cudnn", "flash4"])
@pytest.mark.parametrize("trains", [False, True])
def test_a_backend_of_16_bits_refuses_single_precision_on_a_gpu(backend, trains):
    reason = attention._refuses(backend, "cuda", trains, False, 0, torch.float32)
    assert "takes float16 and bfloat16, not torch.float32" in reason


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_flex_attention_refuses_a_cache_and_on_the_cpu_gradients(device_type):
    ask = attention._refuses
    assert "kv_length" in ask("flex", device_type, False, True, 0, torch.float32)
    trained = ask("flex", device_type, True, False, 0, torch.float32)
    assert trained == ("flex has no backward pass on the CPU" if device_type == "cpu" else None)
    assert ask("triton", device_type, True, False, 0, torch.float32) is None
