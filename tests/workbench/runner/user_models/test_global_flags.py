"""Process-wide settings that a user's file changes: they apply to no other configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from built import owned, stepped
from torch.backends import cuda, mha, mkldnn
from torch.utils import deterministic

from workbench.runner.building.variant_cache import VariantCache

FILE = """
import torch
from torch import nn
from torch.backends import cuda, mha, mkldnn
from torch.utils import deterministic

from workbench.runner.building.variant_cache import VariantCache

class Setting(nn.Linear):
    def forward(self, x):
        {in_forward}
        return super().forward(x)

{at_import}

def build():
    return Setting(8, 8), lambda batch: torch.randn(batch, 8), lambda y, x: y.square().mean()
"""


def attribute(owner, name):
    """Return the functions that read and set an attribute."""
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


SETTINGS = {
    "cuda.matmul.allow_fp16_reduced_precision_reduction = False": attribute(
        cuda.matmul, "allow_fp16_reduced_precision_reduction"
    ),
    "cuda.matmul.allow_bf16_reduced_precision_reduction = False": attribute(
        cuda.matmul, "allow_bf16_reduced_precision_reduction"
    ),
    "cuda.matmul.allow_fp16_accumulation = True": attribute(cuda.matmul, "allow_fp16_accumulation"),
    "cuda.allow_fp16_bf16_reduction_math_sdp(True)": (
        cuda.fp16_bf16_reduction_math_sdp_allowed,
        cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "mkldnn.enabled = False": attribute(mkldnn, "enabled"),
    "mkldnn.deterministic = True": attribute(mkldnn, "deterministic"),
    "deterministic.fill_uninitialized_memory = False": attribute(
        deterministic, "fill_uninitialized_memory"
    ),
    "mha.set_fastpath_enabled(False)": (mha.get_fastpath_enabled, mha.set_fastpath_enabled),
    "torch.set_autocast_enabled('cpu', True)": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "torch.set_autocast_dtype('cpu', torch.float16)": (
        lambda: torch.get_autocast_dtype("cpu"),
        lambda dtype: torch.set_autocast_dtype("cpu", dtype),
    ),
    "torch.set_autocast_cache_enabled(False)": (
        torch.is_autocast_cache_enabled,
        torch.set_autocast_cache_enabled,
    ),
}


@pytest.mark.parametrize("where", ["at_import", "in_forward"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_a_users_file_are_restored(setting, where, tmp_path):
    (read, put), path = SETTINGS[setting], tmp_path / "own.py"
    path.write_text(FILE.format(**{"at_import": "", "in_forward": "pass", where: setting}))
    before = read()
    try:
        stepped(owned(path), "forward")
        assert read() == before
    finally:
        put(before)


CHANGES_FOLDER = """
import os
import torch

def build():
    os.chdir("data")
    return torch.nn.Linear(3, 3), lambda batch: torch.full((batch, 3), float(open("x").read()))
"""


def test_a_working_folder_that_a_file_changes_is_that_of_its_own_functions(tmp_path, monkeypatch):
    """Every build begins in the folder of the runner, where a relative path means the same."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").write_text("7")
    (path := tmp_path / "own.py").write_text(CHANGES_FOLDER)
    monkeypatch.chdir(tmp_path)
    cache = VariantCache()
    for precision in ("fp32", "bf16"):
        variant = stepped(owned(path), "forward", arms=cache, precision=precision)
        assert float(variant.batches.inputs[0].max()) == 7
        assert Path.cwd() == tmp_path
