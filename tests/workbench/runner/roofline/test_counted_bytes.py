"""Bytes of plain operators: each tensor that is read counts once, and each that is written once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workbench.runner.roofline.counter import Tally

N = 1000
BYTES = 4 * N  # of a tensor in FP32


def moved(act) -> int:
    """Return the bytes that are counted while ``act`` runs."""
    tally = Tally(torch.device("cpu"))
    with torch.no_grad(), tally.looking(), tally.counting(None):
        act()
    return sum(call.bytes for call in tally.calls)


def tensors(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.ones(N, dtype=dtype) for _ in range(count)]


@pytest.mark.parametrize(
    ("act", "read", "written"),
    [
        (lambda a, b: a + b, 2, 1),
        (lambda a, b: a + a, 1, 1),
        (lambda a, b: a.add_(b), 2, 1),
        (lambda a, b: a.mul_(2.0), 1, 1),
        (lambda a, b: a.copy_(b), 1, 1),
        (lambda a, b: torch.zeros_like(a), 0, 1),
        (lambda a, b: torch.ones_like(a), 0, 1),
        (lambda a, b: torch.rand_like(a), 0, 1),
        (lambda a, b: torch.full_like(a, 2.0), 0, 1),
        (lambda a, b: a.new_zeros(N), 0, 1),
        (lambda a, b: a.zero_(), 0, 1),
        (lambda a, b: a.fill_(2.0), 0, 1),
        (lambda a, b: a.normal_(), 0, 1),
        (lambda a, b: torch.add(a, a, out=b), 1, 1),
        (lambda a, b: torch.maximum(a, b, out=a), 2, 1),
        (lambda a, b: torch._foreach_add([a, b], 1.0), 2, 2),
        (lambda a, b: torch._foreach_add_([a, b], 1.0), 2, 2),
        (lambda a, b: torch._foreach_mul_([a], [b]), 2, 1),
        (lambda a, b: torch._foreach_copy_([a], [b]), 1, 1),
        (lambda a, b: torch._foreach_zero_([a, b]), 0, 2),
    ],
)  # fmt: skip
def test_what_an_operator_reads_and_writes_counts_once_each(act, read, written):
    a, b = tensors(2)
    assert moved(lambda: act(a, b)) == (read + written) * BYTES


ROWS, COLUMNS, NAMED = 100, 20, 7
ROW = 4 * COLUMNS  # bytes of a row in FP32; an index has 8


@pytest.mark.parametrize(
    ("act", "indices", "rows"),  # rows that are read or written
    [
        (lambda x, i, y, e: x[i], NAMED, 2 * NAMED),
        (lambda x, i, y, e: x.index_select(0, i), NAMED, 2 * NAMED),
        (lambda x, i, y, e: x.gather(0, e), NAMED * COLUMNS, 2 * NAMED),
        (lambda x, i, y, e: x[torch.zeros(NAMED, dtype=torch.int64)], 2 * NAMED, 2 * NAMED),
        (lambda x, i, y, e: x[:3][i % 3], 3 * NAMED, 3 + NAMED),  # the remainder is of indices
        (lambda x, i, y, e: x.index_copy_(0, i, y), NAMED, 2 * NAMED),
        (lambda x, i, y, e: x.index_add_(0, i, y), NAMED, 3 * NAMED),
        (lambda x, i, y, e: x.index_fill_(0, i, 2.0), NAMED, NAMED),
        (lambda x, i, y, e: x.index_put_((i,), y), NAMED, 2 * NAMED),
        (lambda x, i, y, e: x.index_put_((i,), y, accumulate=True), NAMED, 3 * NAMED),
        (lambda x, i, y, e: x.scatter_(0, e, y), NAMED * COLUMNS, 2 * NAMED),
        (lambda x, i, y, e: x.scatter_(0, e, 2.0), NAMED * COLUMNS, NAMED),
        (lambda x, i, y, e: x.scatter_add_(0, e, y), NAMED * COLUMNS, 3 * NAMED),
        (lambda x, i, y, e: x.scatter_reduce_(0, e, y, "amax"), NAMED * COLUMNS, 3 * NAMED),
        (lambda x, i, y, e: x.index_copy(0, i, y), NAMED, NAMED + 2 * ROWS),
        (lambda x, i, y, e: x.index_add(0, i, y), NAMED, NAMED + 2 * ROWS),
        (lambda x, i, y, e: x.scatter_add(0, e, y), NAMED * COLUMNS, NAMED + 2 * ROWS),
    ],
)  # fmt: skip
def test_an_operator_with_indices_moves_them_once_and_the_rows_that_they_name(act, indices, rows):
    x, y = torch.ones(ROWS, COLUMNS), torch.ones(NAMED, COLUMNS)
    index = torch.arange(NAMED)
    every = index[:, None].expand(NAMED, COLUMNS).contiguous()
    assert moved(lambda: act(x, index, y, every)) == 8 * indices + ROW * rows


def test_a_table_of_integers_is_read_only_where_it_is_indexed():
    table, index = torch.ones(ROWS, COLUMNS, dtype=torch.int64), torch.arange(NAMED)
    assert moved(lambda: table[index]) == 8 * NAMED + 2 * 2 * ROW * NAMED


def test_a_single_value_that_many_indices_write_is_read_once():
    x, index, value = torch.ones(ROWS, COLUMNS), torch.arange(NAMED), torch.ones(())
    assert moved(lambda: x.index_put_((index,), value)) == 8 * NAMED + 4 + ROW * NAMED


def test_a_loss_reads_few_of_the_logarithms_and_its_gradient_none():
    aten = torch.ops.aten
    rows, target = torch.ones(10, N), torch.zeros(10, dtype=torch.int64)
    gradient = torch.ones(())
    assert moved(lambda: aten.nll_loss_forward(rows, target, None, 1, -100)) < 200
    backward = moved(
        lambda: aten.nll_loss_backward(gradient, rows, target, None, 1, -100, gradient)
    )
    assert backward == pytest.approx(10 * BYTES, abs=200)  # written


def test_what_is_in_another_devices_memory_does_not_count():
    (a,) = tensors(1)
    meta = torch.empty(N, device="meta")
    assert moved(lambda: a.to("meta")) == BYTES  # read here, and written there
    assert moved(lambda: meta.add_(1.0)) == 0


def test_a_fused_update_writes_gradients_only_where_it_divides_them_by_a_loss_scale():
    weight, gradient, mean, square = tensors(4)
    count, scale, overflow = torch.ones(()), torch.ones(()), torch.zeros(())

    def update(**given) -> None:
        torch._fused_adamw_(
            [weight], [gradient], [mean], [square], [], [count], lr=0.1, beta1=0.9, beta2=0.99,
            weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False, **given,
        )  # fmt: skip

    assert moved(update) == pytest.approx((4 + 3) * BYTES, abs=64)
    scaled = moved(lambda: update(grad_scale=scale, found_inf=overflow))
    assert scaled == pytest.approx((4 + 4) * BYTES, abs=64)
