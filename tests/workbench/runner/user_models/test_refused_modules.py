"""Modules and inputs of users' files that no step or option could measure as they are."""

from __future__ import annotations

import pytest
from built import owned, stepped

from workbench.runner.failures import Mistake, OwnModelError
from workbench.runner.user_models.user_model import FAMILY, fresh

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


UNUSABLE = {
    "on the device meta, which have no values; build it on the CPU": (
        "import torch\n\ndef build():\n"
        "    return torch.nn.Linear(3, 3, device='meta'), torch.zeros(1, 3)\n"
    ),
    "made in torch.inference_mode, which no step can change; build it outside of that mode": (
        "import torch\n\ndef build():\n    with torch.inference_mode():\n"
        "        return torch.nn.Linear(3, 3), torch.zeros(1, 3)\n"
    ),
    "have no weights yet; call the module once in build(), with make_inputs(1)": (
        "import torch\n\ndef build():\n    return torch.nn.LazyLinear(3), torch.zeros(1, 3)\n"
    ),
    "returned DataLoader for make_inputs; expected a function make_inputs(batch)": (
        "import torch\n\ndef build():\n"
        "    data = torch.utils.data.TensorDataset(torch.zeros(8, 3))\n"
        "    return torch.nn.Linear(3, 3), torch.utils.data.DataLoader(data)\n"
    ),
}


@pytest.mark.parametrize("sentence", UNUSABLE)
def test_what_no_step_can_use_is_a_mistake_that_names_the_remedy(tmp_path, sentence):
    path = tmp_path / "own.py"
    path.write_text(UNUSABLE[sentence])
    with pytest.raises(Mistake) as raised:
        fresh(FAMILY.configure("file", {"source": str(path)}))
    assert sentence in str(raised.value)


def test_data_that_end_are_named_as_the_reason(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\n\ndef build():\n    batches = iter([torch.zeros(4, 3)])\n"
        "    return torch.nn.Linear(3, 3), lambda batch: next(batches)\n"
    )
    with pytest.raises(OwnModelError, match="the data ended; start over then"):
        stepped(owned(path), "forward")


def test_a_binary_file_has_no_line(tmp_path):
    path = tmp_path / "own.py"
    path.write_bytes(b"\0")
    with pytest.raises(Mistake) as raised:
        fresh(FAMILY.configure("file", {"source": str(path)}))
    assert str(raised.value).startswith(f"own: {path}: source code string")
