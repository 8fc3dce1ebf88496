"""Every family decodes in FP16 and BF16 as closely as its whole forward pass computes there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from halves import FORMS, LENGTH, PIECES, in_pieces, twins, worst

from kernels.core.triton_helpers import INSTALLED

PRECISIONS = {  # of the weights, and of autocast
    "fp16": (torch.float16, None),
    "amp fp16": (torch.float32, torch.float16),
    "bf16": (torch.bfloat16, None),
    "amp bf16": (torch.float32, torch.bfloat16),
}


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
