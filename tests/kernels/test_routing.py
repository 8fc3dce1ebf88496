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


@pytest.mark.parametrize("gate", each("moe_gating"))
def test_of_equal_logits_the_expert_of_lower_number_is_chosen(gate):
    rows = torch.tensor([1.0, 2.0, 1.0, 2.0, 2.0, -1.0, 0.0], device=DEVICE)
    x = torch.ones(5, 4, device=DEVICE)
    weight, index, counts, _ = gate(x, rows[:, None].expand(-1, 4).contiguous(), 5, True)
    assert index.tolist() == [[1, 3, 4, 0, 2]] * 5
    assert counts.tolist() == [5, 5, 5, 5, 5, 0, 0]
    assert torch.equal(weight[:, 0], weight[:, 2]) and torch.equal(weight[:, 3], weight[:, 4])


@pytest.mark.parametrize("gate", each("moe_gating"))
def test_the_statistics_are_those_of_all_tokens(gate):
    """Their shares come from 79 programs of the kernel, more than are summed at once."""
    torch.manual_seed(0)
    x, router = torch.randn(5000, 6, device=DEVICE), torch.randn(9, 6, device=DEVICE)
    _, index, counts, mean = gate(x, router, 2, False)
    assert counts.tolist() == torch.bincount(index.flatten(), minlength=9).tolist()
    torch.testing.assert_close(mean, (x @ router.T).softmax(-1).mean(0))
    assert float(mean.sum()) == pytest.approx(1.0, abs=1e-5)
