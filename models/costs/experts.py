"""Memory of a router and its experts with PyTorch's operators, in training and inference.

PyTorch's standard experts compute the chosen rows only, as grouped products, or in padded blocks
where these do not run as one kernel (``kernels.moe_experts._plain``). All results are bytes per
token. ``dim`` is the width of a token, ``width`` that of an expert; each token uses ``k`` of ``n``
experts.
"""

from __future__ import annotations

from kernels.moe_experts import block_rows
from models.costs.model_costs import Beside, BlockMemory, How


def rows_by_torch(step: How, *, n: int, k: int) -> float:
    """Return the rows that experts compute per token: its choices and their padding.

    A GPU pads in FP32. 16 bits are assumed to be BF16; FP16 would be padded too.
    """
    if step.device_type == "cpu" or step.element == 2:
        return k
    tokens = step.batch * step.sequence
    rows = block_rows(tokens * k, n)
    return (tokens * k + n * (rows - 1)) // rows * rows / tokens


def experts_by_torch(step: How, *, dim: int, width: int, n: int, k: int) -> BlockMemory:
    """Return the memory besides the router's probabilities and the experts' input.

    Fused kernels keep those, too.
    """
    element, rows = step.element, rows_by_torch(step, n=n, k=k)
    # For each choice: its result in FP32, its row (int64), True if it has one (bool).
    of_choice = 4 * dim + 8 + 1
    if step.compiled:
        # The router's input, where that is a copy; sums of weights, the choices' weights, the
        # experts in order (int64).
        routing = 4 * ((dim if step.stream < 4 else 0) + 2 + k + 2 * n)
        of_row = (dim + 3 * width) * element  # its token, gate, up, their product
        return BlockMemory(
            kept_per_token=round(routing + rows * of_row + k * of_choice),
            backward_per_token=round(rows * 2 * width * element),
        )
    # The router's input, where that is a copy, and its order (int64); k times a weight twice.
    saved = 4 * ((dim if element < 4 else 0) + 2 * n + 2 * k)
    if step.device_type == "cpu" and element < 4:
        saved -= dim * element  # the copy alone
    # For each row: its token, gate, up and silu(gate) in FP32, their product.
    of_row = dim * element + (3 * 4 + element) * width
    return BlockMemory(
        kept_per_token=round(saved + rows * of_row + k * of_choice),
        backward_per_token=round(rows * 3 * 4 * width),
    )


def cast_inputs(step: How, *, dim: int, consumers: int) -> Beside:
    """Return the memory that fused kernels save under autocast for a norm's output of two dtypes.

    The router reads it in FP32. Each of the ``consumers`` in 16 bits has a copy; one of the copies
    is already counted as the output.
    """
    if not (step.fused and step.autocast):
        return Beside()
    numbers = 4 + (consumers - 1) * step.element
    return Beside(step.batch * step.sequence * dim * numbers)


def experts_at_work(step: How, *, dim: int, width: int, n: int, k: int) -> int:
    """Return the peak where no backward pass follows, besides the experts' input."""
    if step.fused:  # the products and results of the choices, their sum
        return (k * (width + dim) + dim) * step.element
    rows = rows_by_torch(step, n=n, k=k)
    # Gate and up with copies in FP32, silu(gate) and the product: 16 bytes in either precision.
    hidden = rows * (dim * step.element + 16 * width)
    combined = rows * dim * step.element + k * dim * (step.element + 2 * 4)
    # For each choice: expert, order, token and position (int64), and a flag of validity.
    return round(max(hidden, combined)) + k * (4 * 8 + 1)
