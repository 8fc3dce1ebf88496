"""Modules of users' files that no step or option could measure as they are."""

from __future__ import annotations

import pytest
from built import owned, stepped

from workbench.runner.failures import Mistake

FILE = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = {layer}
    def forward(self, x):
        return {output}

def build():
    return Own(), lambda n: torch.randn(n, 8), lambda y, x: sum(z.square().mean() for z in y)
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a model and returns its path."""

    def write(layer="nn.Linear(8, 8)", output="self.a(x)"):
        path = tmp_path / "own.py"
        path.write_text(FILE.format(layer=layer, output=output))
        return path

    return write


@pytest.mark.parametrize("output", ["(self.a(x) for _ in range(2))", "map(self.a, (x, x))"])
@pytest.mark.parametrize("workload", ["forward", "train"])
def test_an_iterator_as_output_is_a_mistake(write, output, workload):
    """Without a loss that reads it, the step would measure nothing."""
    with pytest.raises(Mistake, match="computes nothing until it is read"):
        stepped(owned(write(output=output)), workload)


def test_a_layer_that_the_file_compiles_is_not_quantized(write):
    path = write("torch.compile(nn.Linear(8, 8), backend='eager')")
    with pytest.raises(Mistake, match=r"the file compiles module\.a\._orig_mod"):
        stepped(owned(path), "forward", quantization="int8_weight_only")
