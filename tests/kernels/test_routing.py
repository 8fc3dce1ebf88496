"""What routing promises beyond its reference: ties, order, and the way there and back."""

import pytest
import torch
from subjects import DEVICE, implementations

from kernels import OPS

NAN, INF = float("nan"), float("inf")


def each(*names):
    """Every implementation of these operators; the operator's name stands first in the id."""
    return [
        pytest.param(OPS[name].implementations[impl], id=f"{name}-{impl}")
        for name in names
        for impl in implementations(OPS[name])
    ]


@pytest.mark.parametrize("route", each("token_router"))
@pytest.mark.parametrize(
    ("scores", "k", "chosen"),
    [
        ([1.0, 2.0, 2.0, 2.0, 0.0], 2, [1, 2]),
        ([0.0, -0.0, 0.0, -0.0], 3, [0, 1, 2]),
        ([-1.0, -2.0, -0.5, -3.0], 2, [0, 2]),
        ([-INF, 1.0, -INF, INF, -INF], 3, [0, 1, 3]),
        ([1.0, NAN, 3.0, 2.0], 2, [1, 2]),
        ([1e-42, 2e-42, 0.0, -1e-42], 2, [0, 1]),
    ],
)
def test_the_highest_are_chosen_and_of_equals_the_first(route, scores, k, chosen):
    score = torch.tensor([scores], device=DEVICE)
    x = torch.arange(float(len(scores)), device=DEVICE)[None, :, None].expand(1, -1, 3)
    tokens, values, index = route(x, score, k)
    assert index.tolist() == [chosen]
    assert tokens[0, :, 0].tolist() == chosen
    torch.testing.assert_close(values, score[:, chosen], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("scatter", each("token_scatter"))
def test_what_was_not_chosen_passes_through_bit_for_bit(scatter):
    x = torch.randn(2, 50, 33, device=DEVICE).half()
    index = torch.tensor([[3, 8, 49], [0, 1, 2]], device=DEVICE)
    update, weight = torch.randn(2, 3, 33, device=DEVICE), torch.ones(2, 3, device=DEVICE)
    y = scatter(x, update, weight, index)
    rest = torch.ones(2, 50, dtype=torch.bool, device=DEVICE).scatter_(1, index, False)
    assert torch.equal(y[rest], x[rest])
    assert not torch.equal(y[~rest], x[~rest])
