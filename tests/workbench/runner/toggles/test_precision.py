"""TF32 is judged by the model's own products and convolutions, and off wherever it is not asked."""

from __future__ import annotations

import msgspec
import pytest
import torch
from built import stepped
from test_engine_toggles import IMAGES
from torch.backends import cudnn
from torch.utils._python_dispatch import TorchDispatchMode

from sessions.model import Configuration
from workbench.runner.roofline.ceilings import fp32_products
from workbench.runner.toggles import all_toggles

ATEN = torch.ops.aten
MANTISSA_LEFT = -(1 << 13)  # of the 23 bits of FP32, 10


class TensorCores(TorchDispatchMode):
    """Rounds the inputs of some operators as tensor cores do."""

    def __init__(self, *operators):
        super().__init__()
        self.operators = operators

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.operators:
            args = [
                (x.view(torch.int32) & MANTISSA_LEFT).view(torch.float32)
                if isinstance(x, torch.Tensor) and x.dtype == torch.float32
                else x
                for x in args
            ]
        return func(*args, **(kwargs or {}))


def judged(arm) -> tuple[str, str]:
    with arm.entered():
        finding = all_toggles()["precision"].evidence("tf32", arm.observed())
    return finding.status, finding.text


@pytest.fixture(scope="module")
def images():
    own = Configuration(family="own", preset="file", model={"source": str(IMAGES)})
    return stepped(msgspec.structs.replace(own, settings={"batch": 2}), "forward")


def test_products_of_all_bits_show_no_tf32(small, images):
    status, text = judged(stepped(small, "decode"))
    assert (
        status == "no effect" and "compared with FP64: 0 of " in text and "matrix products" in text
    )
    status, text = judged(images)
    assert status == "no effect" and "0 of 2 convolutions" in text


def test_each_kind_of_product_that_is_rounded_is_counted(images):
    with TensorCores(ATEN.convolution.default, ATEN.conv2d.default):
        status, text = judged(images)
    assert status == "effective"
    assert "2 of 2 convolutions (error up to " in text and "0 of 2 matrix products " in text
    with TensorCores(ATEN.addmm.default, ATEN.mm.default):
        status, text = judged(images)
    assert status == "effective"
    assert "0 of 2 convolutions" in text and "2 of 2 matrix products " in text


def test_a_model_without_fp32_products_proves_nothing(small):
    assert judged(stepped(small, "forward", precision="bf16")) == (
        "no effect",
        "this model calls no FP32 matrix product or convolution of torch",
    )


def test_without_tf32_every_product_and_convolution_keeps_its_bits(small):
    arm = stepped(small, "forward")
    with fp32_products(tf32=True):
        assert (torch.get_float32_matmul_precision(), cudnn.allow_tf32) == ("high", True)
        with arm.entered():
            assert (torch.get_float32_matmul_precision(), cudnn.allow_tf32) == ("highest", False)
        assert cudnn.allow_tf32
