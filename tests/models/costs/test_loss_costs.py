"""The estimate of a compiled loss against the buffers that Inductor allocates for it."""

import dataclasses
import math
import re

import pytest
import torch
from peak_bytes import FORMATS
from torch._inductor.utils import fresh_cache, run_fw_bw_and_get_code

from kernels import own_code
from models import FAMILIES

ROWS, LENGTH = 2048, 256


@pytest.mark.slow
@pytest.mark.parametrize("precision", FORMATS)
def test_a_loss_by_inductor_holds_its_logits_once(precision):
    family, tokens_BS = FAMILIES["hydra"], torch.zeros(2, LENGTH, dtype=torch.int64)
    config = dataclasses.replace(family.presets["tiny"], n_layers=1, vocabulary=ROWS)
    model, n_logits = family.materialise(config, seed=3), tokens_BS.numel() * ROWS
    x_BSE = torch.randn(*tokens_BS.shape, config.dim, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(own_code(type(model)._loss), fullgraph=True)

    def loss():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"):
            return compiled(model, x_BSE, None, tokens_BS)

    with fresh_cache():  # another process may have compiled it with other settings
        _, sources = run_fw_bw_and_get_code(loss)
    shapes = re.findall(r"= empty_strided_cpu\(\(([\d, ]+)\), ", "\n".join(sources))
    allocated = [math.prod(int(size) for size in re.findall(r"\d+", shape)) for shape in shapes]
    assert sum(numbers >= n_logits for numbers in allocated) == 1

    step = {"workload": "train", "batch": 2, "sequence": LENGTH, "precision": precision}
    eager, once = (
        family.footprint(config, fused=False, compiled=compiled, **step).activations
        for compiled in (False, True)
    )
    saved = n_logits * (12 - (4 if precision == "fp32" else 2))
    assert eager - once == pytest.approx(saved, rel=0.1)
