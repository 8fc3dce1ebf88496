"""Routing beyond the reference: ties, order, and the round trip."""

import pytest
import torch
from subjects import DEVICE, implementations

from kernels import OPS, Case
from kernels.core.triton_helpers import missing
from kernels.moe_experts._order import by_expert

NAN, INF = float("nan"), float("inf")


def implementations_of(*names):
    """Parametrize with every implementation of these operators; ids begin with the operator."""
    return [
        pytest.param(OPS[name].implementations[impl], id=f"{name}-{impl}")
        for name in names
        for impl in implementations(OPS[name])
    ]


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
@pytest.mark.parametrize("route", implementations_of("token_router"))
def test_the_highest_are_chosen_and_of_equals_the_first(route, scores, k, chosen):
    score = torch.tensor([scores], device=DEVICE)
    x = torch.arange(float(len(scores)), device=DEVICE)[None, :, None].expand(1, -1, 3)
    tokens, values, index = route(x, score, k)
    assert index.tolist() == [chosen]
    assert tokens[0, :, 0].tolist() == chosen
    torch.testing.assert_close(values, score[:, chosen], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("scatter", implementations_of("token_scatter"))
def test_what_was_not_chosen_passes_through_bit_for_bit(scatter):
    x = torch.randn(2, 50, 33, device=DEVICE).half()
    index = torch.tensor([[3, 8, 49], [0, 1, 2]], device=DEVICE)
    update, weight = torch.randn(2, 3, 33, device=DEVICE), torch.ones(2, 3, device=DEVICE)
    y = scatter(x, update, weight, index)
    rest = torch.ones(2, 50, dtype=torch.bool, device=DEVICE).scatter_(1, index, False)
    assert torch.equal(y[rest], x[rest])
    assert not torch.equal(y[~rest], x[~rest])


@pytest.mark.skipif(missing(DEVICE.type) is not None, reason="needs Triton to run")
def test_what_is_no_place_is_left_out_forward_and_backward():
    torch.manual_seed(0)
    scatter = OPS["token_scatter"].implementations["triton"]
    x, update = torch.randn(2, 9, 5, device=DEVICE), torch.randn(2, 4, 5, device=DEVICE)
    weight = torch.randn(2, 4, device=DEVICE)
    index = torch.tensor([[0, -1, 8, 3], [1, 9, 2, 1 << 40]], device=DEVICE)
    inside = (index >= 0) & (index < 9)
    leaves = [t.clone().requires_grad_() for t in (x, update, weight)]
    y = scatter(*leaves, index)
    actual = y, *torch.autograd.grad(y, leaves, x)

    # The same as valid positions with weights and gradients of zero.
    leaves = [t.clone().requires_grad_() for t in (x, update, weight)]
    expected = OPS["token_scatter"].reference(
        leaves[0], leaves[1], leaves[2] * inside, index.where(inside, 7)
    )
    slopes = torch.autograd.grad(expected, leaves, x)
    torch.testing.assert_close(actual, (expected, *slopes))


@pytest.mark.parametrize("gate", implementations_of("moe_gating"))
def test_of_equal_logits_the_expert_of_lower_number_is_chosen(gate):
    rows = torch.tensor([1.0, 2.0, 1.0, 2.0, 2.0, -1.0, 0.0], device=DEVICE)
    x = torch.ones(5, 4, device=DEVICE)
    weight, index, counts, _ = gate(x, rows[:, None].expand(-1, 4).contiguous(), 5, True)
    assert index.tolist() == [[1, 3, 4, 0, 2]] * 5
    assert counts.tolist() == [5, 5, 5, 5, 5, 0, 0]
    assert torch.equal(weight[:, 0], weight[:, 2]) and torch.equal(weight[:, 3], weight[:, 4])


@pytest.mark.parametrize("gate", implementations_of("moe_gating"))
def test_the_statistics_are_those_of_all_tokens(gate):
    """Their shares come from 79 programs of the kernel, more than are summed at once."""
    torch.manual_seed(0)
    x, router = torch.randn(5000, 6, device=DEVICE), torch.randn(9, 6, device=DEVICE)
    _, index, counts, mean = gate(x, router, 2, False)
    assert counts.tolist() == torch.bincount(index.flatten(), minlength=9).tolist()
    torch.testing.assert_close(mean, (x @ router.T).softmax(-1).mean(0))
    assert float(mean.sum()) == pytest.approx(1.0, abs=1e-5)


def loop_over_experts(x, index, weight, gate, up, down):
    """Compute a mixture in the plainest way, one token and one choice at a time."""
    rows = []
    for n, token in enumerate(x):
        row = torch.zeros_like(token)
        for e, share in zip(index[n].tolist(), weight[n], strict=True):
            if 0 <= e < len(down):
                inside = torch.nn.functional.silu(gate[e] @ token) * (up[e] @ token)
                row = row + share * (down[e] @ inside)
        rows.append(row)
    return torch.stack(rows)


def sizes(mix):
    """Width of the tokens and of an expert: odd, where the implementation takes such."""
    known = OPS["moe_experts"].implementations
    return (12, 8) if mix in (known["grouped"], known["triton_grouped"]) else (9, 7)


@pytest.mark.parametrize("name", ["grouped", "triton_grouped"])
@pytest.mark.parametrize(("dim", "width", "size"), [(9, 8, 9), (12, 7, 7)])
def test_torchs_grouped_product_refuses_rows_that_are_not_aligned(name, dim, width, size):
    x, weight = torch.randn(4, dim), torch.rand(4, 2)
    index = torch.arange(2).expand(4, 2)
    gate, up, down = (*torch.randn(2, 2, width, dim).unbind(), torch.randn(2, dim, width))
    why = OPS["moe_experts"].implementations[name].refuses(x, index, weight, gate, up, down)
    assert f"multiple of 16 bytes, but {size} numbers of float32 have {4 * size}" in why


def ways(n_experts, k):
    """Return the possible routings of 30 tokens."""
    torch.manual_seed(3)
    return {
        "anywhere": torch.rand(30, n_experts).argsort(-1)[:, :k],
        "to the last": torch.arange(n_experts - k, n_experts).expand(30, k),
        "twice to one": torch.full((30, k), 1),
        "nowhere, some": torch.where(torch.rand(30, k) < 0.5, -1, 2),
        "nowhere": torch.full((30, k), n_experts),
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("n_experts", "k", "way"),
    [
        (6, 2, "anywhere"),
        (3, 3, "anywhere"),
        (6, 1, "to the last"),
        (6, 2, "twice to one"),
        (6, 2, "nowhere, some"),
        (6, 2, "nowhere"),
    ],
)
@pytest.mark.parametrize("mix", implementations_of("moe_experts"))
def test_a_mixture_is_a_loop_over_its_experts_with_its_gradients(mix, packed, n_experts, k, way):
    index = ways(n_experts, k)[way]
    dim, width = sizes(mix)
    x, weight = torch.randn(30, dim), torch.rand(30, k)
    gate, up = torch.randn(n_experts, width, dim), torch.randn(n_experts, width, dim)
    down, dy = torch.randn(n_experts, dim, width), torch.randn(30, dim)
    leaves = [t.to(DEVICE).requires_grad_() for t in (x, weight, gate, up, down)]
    x, weight, gate, up, down = leaves
    index, dy = index.to(DEVICE), dy.to(DEVICE)
    experts = (torch.cat((gate, up), 1), None, down) if packed else (gate, up, down)
    actual = mix(x, index, weight, *experts)
    expected = loop_over_experts(x, index, weight, gate, up, down)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    if way == "nowhere":
        assert not actual.any()
        expected = expected + 0 * sum(t.sum() for t in leaves)
    pairs = zip(
        torch.autograd.grad(actual, leaves, dy),
        torch.autograd.grad(expected, leaves, dy, materialize_grads=True),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mix", implementations_of("moe_experts"))
def test_one_gradient_alone_is_what_it_is_beside_the_others(mix):
    op = OPS["moe_experts"]
    dim, width = sizes(mix)
    case = Case("small", {"rows": 9, "dim": dim, "width": width, "experts": 2, "k": 2})
    inputs = op.inputs(case, DEVICE, torch.float32, 0)

    def gradients(*names):
        leaves = {n: x.detach().requires_grad_(n in names) for n, x in inputs.items()}
        return torch.autograd.grad(mix(*leaves.values()).sum(), [leaves[n] for n in names])

    for name, expected in zip(op.gradients, gradients(*op.gradients), strict=True):
        torch.testing.assert_close(gradients(name), (expected,))


@pytest.mark.skipif(missing(DEVICE.type) is not None, reason="needs Triton to run")
@pytest.mark.parametrize("n_tokens", [25, 10_000])
def test_the_order_by_expert_is_that_of_a_stable_sort(n_tokens):
    """Cover a single chunk, and several chunks that need one tile of chunks and one turn."""
    torch.manual_seed(0)
    n_experts, m = 40, 16
    # the last expert gets none
    index = torch.randint(-1, n_experts - 1, (n_tokens, 2), device=DEVICE)
    order = by_expert(index, n_experts, m)
    table = order.table
    choice, row = table[: order.n_choices], table[order.row_at :][: order.n_choices]
    flat = index.flatten()
    n_chosen = int((flat >= 0).sum())
    expected = flat.argsort(stable=True)[len(flat) - n_chosen :]
    assert torch.equal(choice[:n_chosen].long(), expected)
    assert torch.equal(row[expected].long(), torch.arange(n_chosen, device=DEVICE))
    assert bool((row[flat < 0] == -1).all())
    ends = torch.bincount(flat[flat >= 0], minlength=n_experts).cumsum(0)
    assert table[order.first_at :][: n_experts + 1].tolist() == [0, *ends.tolist()]
    rows = []
    blocks = table[order.block_at :][: 3 * order.n_blocks].view(3, -1)
    for expert, first, end in blocks.T.tolist():
        if expert >= 0:
            assert end == ends[expert]
            rows += [(row, expert) for row in range(first, min(first + m, end))]
    assert rows == list(enumerate(flat[expected].tolist()))


@pytest.mark.parametrize("gate", implementations_of("moe_gating"))
@pytest.mark.parametrize(
    ("noise", "chosen"),
    [
        ([0.0, -INF, 0.0, -INF, 0.0, -INF, 0.0], [4, 0]),
        ([-INF, -INF, -INF, -INF, 0.0, -INF, -INF], [4, 0]),
        ([-INF, -INF, 0.0, -INF, -INF, -INF, -INF], [2, 0]),
    ],
)
def test_experts_that_the_noise_rules_out_are_not_counted(gate, noise, chosen):
    logits = torch.tensor([1.0, 2.0, 0.0, 2.0, 2.0, -1.0, 0.0], device=DEVICE)
    x, router = torch.ones(5, 4, device=DEVICE), logits[:, None].expand(-1, 4) / 4
    weight, index, counts, mean = gate(
        x, router.contiguous(), 2, False, torch.tensor(noise, device=DEVICE).expand(5, -1)
    )
    assert index.tolist() == [chosen] * 5
    assert counts.tolist() == [5 * (e in chosen) for e in range(7)]
    expected = (logits + torch.tensor(noise, device=DEVICE)).softmax(-1)
    torch.testing.assert_close(mean, expected)
    torch.testing.assert_close(weight, expected[chosen].expand(5, -1))


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("gate", implementations_of("moe_gating"))
def test_a_logit_that_is_nan_is_seen_in_the_weights_and_gradients(gate, renormalise):
    torch.manual_seed(0)
    x, router = torch.randn(5, 4, device=DEVICE), torch.randn(7, 4, device=DEVICE)
    router[3, 2] = NAN
    x.requires_grad_()
    weight, index, _, _ = gate(x, router, 2, renormalise)
    (dx,) = torch.autograd.grad(weight.sum(), x)
    assert weight.isnan().all() and dx.isnan().all()
    assert ((index >= 0) & (index < 7)).all()
