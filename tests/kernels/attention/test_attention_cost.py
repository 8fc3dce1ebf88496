"""The work of attention as it is counted for predictions and rooflines."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import OPS
from kernels.attention._masks import visible


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 2, 5])
def test_counted_pairs_are_those_of_the_mask_also_under_fake_tensors(causal, window):
    for length, keys in itertools.product((1, 3, 5), (1, 4, 7)):
        mask = visible(length, keys, torch.device("cpu"), causal, window, None)
        pairs = int(mask.expand(2, length, keys).sum())
        with FakeTensorMode():  # in which a prediction counts a step
            q, k = torch.empty(2, 3, length, 8), torch.empty(2, 3, keys, 8)
            cost = OPS["attention"].cost(q, k, k, causal, window, None, None)
        assert cost.forward.flops == 4 * pairs * 3 * 8
