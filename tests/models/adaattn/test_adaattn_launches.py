"""Number of operations in AdaAttn as on a GPU: small layers' plain steps are bound by launches."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.append(str(Path(__file__).parents[2] / "kernels"))
from stubbed_triton import stubbed

import kernels
from kernels.core import triton_helpers
from models import FAMILIES

pytestmark = [
    pytest.mark.skipif(not triton_helpers.INSTALLED, reason="Triton is not installed"),
    pytest.mark.skipif(triton_helpers.INTERPRETED, reason="the interpreter launches nothing"),
]
ADAATTN = FAMILIES["adaattn"]
CALLS = 6  # after which what is replayed is


class Operations(TorchDispatchMode):
    """Count of torch's operations that are neither views nor allocations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        returns = operation._schema.returns
        views = all(item.alias_info and not item.alias_info.is_write for item in returns)
        if not views and "empty" not in name and name not in ("_unsafe_view", "promote_types"):
            self.count += 1
        return operation(*args, **(kwargs or {}))


def operations(workload, n_layers, dtype):
    """Count those of one call of a model like base, but smaller."""
    preset = ADAATTN.presets["base"]
    config = dataclasses.replace(preset, vocabulary=256, dim=256, n_layers=n_layers, n_heads=4)
    tokens_BS, position = torch.zeros(2, 64, dtype=torch.int64), torch.tensor(70)
    with stubbed() as driver, kernels.using(attention="triton"):
        model = ADAATTN.materialise(config, dtype=dtype)
        model.freeze(workload == "frozen")
        cache = model.new_cache(2, 128)

        def call():
            if workload == "train":
                model.loss(tokens_BS, tokens_BS)
            elif workload == "decode":
                model(tokens_BS[:, :1], cache=cache, position=position)
            elif workload == "prefill":
                model(tokens_BS, cache=cache, last_only=True)
            else:
                model(tokens_BS)

        with torch.set_grad_enabled(workload == "train"):
            for _ in range(CALLS):
                call()
            driver.launches.clear()
            with Operations() as counted:
                call()
    return counted.count + len(driver.launches)


@pytest.mark.parametrize(
    ("workload", "dtype", "layer", "beside"),
    [
        ("train", torch.bfloat16, 27, 145),
        ("forward", torch.bfloat16, 27, 142),
        ("forward", torch.float32, 29, 144),
        ("frozen", torch.bfloat16, 13, 10),
        ("prefill", torch.bfloat16, 15, 13),
        ("decode", torch.bfloat16, 15, 15),
        ("decode", torch.float32, 29, 10),
    ],
)
def test_a_layer_takes_few_operations_and_so_does_what_layers_share(workload, dtype, layer, beside):
    one_layer, two_layers = (operations(workload, n_layers, dtype) for n_layers in (1, 2))
    assert two_layers - one_layer <= layer
    assert 2 * one_layer - two_layers <= beside
