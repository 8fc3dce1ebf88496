"""Every family decodes in FP16 and BF16 as closely as its whole forward pass computes there."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from halves import FORMS, LENGTH, PIECES, in_pieces, twins, worst

import kernels
from kernels.core.triton_helpers import INSTALLED
from models import FAMILIES, ConfigurationError, language_model

PRECISIONS = {  # of the weights, and of autocast
    "fp16": (torch.float16, None),
    "amp fp16": (torch.float32, torch.float16),
    "bf16": (torch.bfloat16, None),
    "amp bf16": (torch.float32, torch.bfloat16),
}


@pytest.mark.sample(10)
@torch.no_grad()
@pytest.mark.parametrize(
    "precision",
    [pytest.param(name, marks=[pytest.mark.slow] if "bf16" in name else []) for name in PRECISIONS],
)
@pytest.mark.parametrize("form", FORMS)
def test_decoding_errs_at_most_twice_as_much_as_the_whole_pass_in_its_precision(form, precision):
    dtype, autocast = PRECISIONS[precision]
    half = autocast or dtype
    model, exact, tokens_BS = twins(form, dtype)
    exact_BSV = in_pieces(exact, tokens_BS, (LENGTH,), exact.new_cache(2, LENGTH))
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        cache = model.new_cache(2, LENGTH)
        whole_BSV = in_pieces(model, tokens_BS, (LENGTH,), cache)
        decoded_BSV = in_pieces(model, tokens_BS, PIECES, cache)
    assert half in {tensor.dtype for tensor in cache.tensors()}
    assert decoded_BSV.dtype == whole_BSV.dtype == half
    of_whole, of_decoded = (worst(result, exact_BSV) for result in (whole_BSV, decoded_BSV))
    assert of_decoded <= 2 * of_whole
    assert of_whole < 4 * torch.finfo(half).eps  # which is lost by a few roundings


FUSED = ("hydra", "hydra, depths", "mamba2", "mamba2, attention-free", "adaattn", "adaattn, narrow")


@torch.no_grad()
@pytest.mark.parametrize("form", FUSED)
def test_fused_linear_layers_decode_the_same(form, monkeypatch):
    _, exact, tokens_BS = twins(form, torch.bfloat16)
    separate_BSV = in_pieces(exact, tokens_BS, PIECES, exact.new_cache(2, LENGTH))
    monkeypatch.setattr(language_model, "is_for_few_rows", lambda x: True)  # also for FP64
    exact.set_fused_linear(True)
    kernels.reset_usage()
    fused_BSV = in_pieces(exact, tokens_BS, PIECES, exact.new_cache(2, LENGTH))
    steps = PIECES.count(1)
    by_block = 2 if form.startswith("mamba2") else 4
    gates = sum(hasattr(layer, "fuses_gate") for layer in exact.blocks.modules())
    fused = by_block * len(exact.fused_linear)
    # Blocks that are not fused have a gate in every step, and all have it in passes of more tokens.
    separate = gates - len(exact.fused_linear) if gates else 0
    calls = steps * (fused + separate) + (len(PIECES) - steps) * gates
    assert sum(kernels.usage()["fused_linear"].values()) == calls
    torch.testing.assert_close(fused_BSV, separate_BSV, rtol=1e-10, atol=1e-10)


CACHED = {  # layers that write to the cache directly
    "hydra": 2, "hydra, depths": 1, "mamba2": 1, "adaattn": 2, "adaattn, narrow": 2, "moe": 2
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("form", CACHED)
def test_a_token_that_one_operator_writes_to_the_cache_decodes_the_same(form, linear, monkeypatch):
    # In FP64, AdaAttn's heads that adapt their precision round keys before they are written.
    fields = {"adaptive_precision": False} if form.startswith("adaattn") else {}
    _, exact, tokens_BS = twins(form, torch.bfloat16, **fields)
    separate_BSV = in_pieces(exact, tokens_BS, PIECES, exact.new_cache(2, LENGTH))
    monkeypatch.setattr(language_model, "is_for_few_rows", lambda x: True)  # also for FP64
    if linear and form != "moe":
        exact.set_fused_linear(True)
    exact.set_fused_cache(True)
    kernels.reset_usage()
    fused_BSV = in_pieces(exact, tokens_BS, PIECES, exact.new_cache(2, LENGTH))
    calls = sum(kernels.usage()["rope_to_cache"].values())
    assert calls == CACHED[form] * PIECES.count(1)
    torch.testing.assert_close(fused_BSV, separate_BSV, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("form", FUSED)
def test_fused_linear_layers_err_at_most_twice_as_much_as_the_whole_pass(form):
    model, exact, tokens_BS = twins(form, torch.bfloat16)
    exact_BSV = in_pieces(exact, tokens_BS, (LENGTH,), exact.new_cache(2, LENGTH))
    whole_BSV = in_pieces(model, tokens_BS, (LENGTH,), model.new_cache(2, LENGTH))
    model.set_fused_linear(True)
    if form in CACHED:
        model.set_fused_cache(True)
    kernels.reset_usage()
    fused_BSV = in_pieces(model, tokens_BS, PIECES, model.new_cache(2, LENGTH))
    assert ("rope_to_cache" in kernels.usage()) == (form in CACHED)
    assert worst(fused_BSV, exact_BSV) <= 2 * worst(whole_BSV, exact_BSV)


@torch.no_grad()
@pytest.mark.parametrize("form", CACHED)
def test_heads_that_their_projection_rotates_are_the_same(form):
    fields = {"adaptive_precision": False} if form.startswith("adaattn") else {}  # as above
    _, exact, tokens_BS = twins(form, torch.bfloat16, **fields)
    separate_BSV = in_pieces(exact, tokens_BS, PIECES, exact.new_cache(2, LENGTH))
    exact.set_fused_heads(True)
    kernels.reset_usage()
    fused_BSV = in_pieces(exact, tokens_BS, PIECES, exact.new_cache(2, LENGTH))
    # Only the first piece is at the start of the sequence.
    assert kernels.usage()["qkv_rope"] == {"torch": CACHED[form]}
    torch.testing.assert_close(fused_BSV, separate_BSV, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("case", "gates"),
    [
        ("FP32", True), ("FP16", True), ("17 sequences", True), ("a prompt", True),
        ("autocast", False), ("training", False),
    ],
)  # fmt: skip
def test_other_steps_fuse_at_most_gates(case, gates):
    model = (
        FAMILIES["hydra"]
        .materialise(
            FAMILIES["hydra"].presets["tiny"],
            dtype={"FP32": torch.float32, "autocast": torch.float32, "FP16": torch.float16}.get(
                case, torch.bfloat16
            ),
            seed=3,
        )
        .eval()
    )
    model.set_fused_linear(True)
    rows, length = (17 if case == "17 sequences" else 2), (2 if case == "a prompt" else 1)
    kernels.reset_usage()
    with (
        torch.set_grad_enabled(case == "training"),
        torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"),
    ):
        cache = model.new_cache(rows, LENGTH)
        model(torch.zeros(rows, length, dtype=torch.int64), cache, torch.tensor(3))
    calls = sum(kernels.usage().get("fused_linear", {}).values())
    assert calls == (len(model.blocks) if gates else 0)
    assert sum(kernels.usage().get("swiglu", {}).values()) == len(model.blocks) - calls


def test_a_model_without_a_block_that_fuses_says_so():
    moe = FAMILIES["moe"].materialise(FAMILIES["moe"].presets["tiny"], seed=3)
    with pytest.raises(ConfigurationError, match="no block can fuse its linear layers"):
        moe.set_fused_linear(True)
    config = dataclasses.replace(FAMILIES["hydra"].presets["tiny"], ccgqa=True)
    convolved = FAMILIES["hydra"].materialise(config, seed=3)
    with pytest.raises(ConfigurationError, match="no layer can write to a cache directly"):
        convolved.set_fused_cache(True)
    with pytest.raises(ConfigurationError, match="no layer can rotate the heads it projects"):
        convolved.set_fused_heads(True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the kernels run on the GPU itself")
@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
def test_in_the_interpreter_triton_decodes_in_fp16_as_closely_as_torch():
    """In a process of its own: TRITON_INTERPRET must be set before Triton is imported."""
    done = subprocess.run(
        [sys.executable, "-c", "import halves; halves.compare_in_the_interpreter()"],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["hydra", "mamba2", "adaattn", "moe"]
