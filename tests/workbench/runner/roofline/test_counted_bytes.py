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
