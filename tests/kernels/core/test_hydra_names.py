"""The HYDRA guide's names: they do what the library does under its own."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels import OPS, Mistake, Unavailable


@pytest.fixture(autouse=True)
def as_before():
    with kernels.using():
        yield


def test_triton_is_switched_off_and_on_for_all_operators_and_the_status_says_so():
    status = kernels.get_kernel_status()
    assert set(status["kernels"]) == set(OPS)
    kernels.set_use_triton_kernels(False)
    off = kernels.get_kernel_status()
    assert off["use_triton_kernels"] is False
    assert kernels.chosen()["rms_norm"] == "torch" and kernels.chosen()["attention"] == "auto"
    kernels.set_use_triton_kernels(True)
    assert kernels.get_kernel_status() == status
    assert status["use_triton_kernels"] == status["triton_available"]


def test_flexible_attention_is_attention_with_fewer_key_heads_than_query_heads():
    q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(kernels.flexible_attention(q, k, v, is_causal=True), expected, atol=1e-6)
    assert not torch.allclose(kernels.flexible_attention(q, k, v, is_causal=False), expected)


def test_an_attention_backend_is_chosen_by_the_guides_name_or_refused_with_the_reason():
    kernels.set_attention_backend("sdpa")
    assert kernels.chosen()["attention"] == "sdpa"
    kernels.set_attention_backend("auto")
    assert kernels.chosen()["attention"] == "auto"
    with pytest.raises(Mistake, match="unknown backend 'fast'"):
        kernels.set_attention_backend("fast")
    for name in ("flash", "xformers"):
        if not {"flash2", "flash3", "flash4", "xformers"} & set(
            kernels.status()["attention"].available
        ):
            with pytest.raises(Unavailable, match=f"{name!r} cannot run: "):
                kernels.set_attention_backend(name)
