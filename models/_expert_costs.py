"""Memory of a router and its experts with PyTorch's operators, in training and inference.

On a GPU, and compiled, these pass every token through every expert; on a CPU through the chosen
ones. Bytes per token; ``dim`` is the tokens' width and ``width`` an expert's; a token chooses ``k``
of ``n``.
"""

from __future__ import annotations

from models._costs import BlockMemory, How


def experts_by_torch(how: How, *, dim: int, width: int, n: int, k: int) -> BlockMemory:
    """Return the memory besides the router's probabilities and the experts' input.

    Fused kernels save those, too.
    """
    element = how.element
    if how.compiled:
        # Each expert's result, which autocast leaves in its dtype; with gate, up and their product.
        result = dim * (2 if how.autocast else 4)
        # The router's input, if that is a copy; sums of weights, the sorted choices and their order
        # (int64).
        routing = (dim if how.stream < 4 else 0) + 2 + k + 2 * n
        return BlockMemory(
            # Also whether an expert is each of the choices (bool).
            kept_per_token=4 * routing + n * (3 * width * element + result + k),
            # The gradients of the product, of gate and of up, after product and result are freed;
            # or that of the result.
            backward_per_token=n * max(2 * width * element - result, dim * element),
            # Gate and up in another layout; autocast saves only copies.
            saved=0 if how.autocast else 2 * n * width * dim * element,
        )
    # The router's input, if that is a copy, and its order (int64); k times a weight twice.
    saved = 4 * ((dim if element < 4 else 0) + 2 * n + 2 * k)
    # Per expert: gate, up and silu(gate) in FP32, their product, the result in FP32.
    of_one = (3 * 4 + element) * width + 4 * dim
    if how.device_type == "cpu":
        # Its token, the result times its weight; that weight, and both indices (int64).
        saved += k * (of_one + dim * element + 4 * dim + 5 * 4)
        saved -= dim * element if element < 4 else 0  # only the copy of the router's input
        return BlockMemory(kept_per_token=saved, backward_per_token=3 * 4 * width)
    at_most = max(8 * dim + (3 * 4 + element) * width, 6 * 4 * width)
    return BlockMemory(
        # Also its weight, and whether it is each of the choices (bool).
        kept_per_token=saved + n * (of_one + 4 + k),
        # The gradients of the result, twice; or of gate, up and the two products in FP32.
        backward_per_token=n * (at_most - of_one),
        saved=2 * n * width * dim * element,  # gate and up in another layout
    )


def experts_at_work(how: How, *, dim: int, width: int, n: int, k: int) -> int:
    """Return the peak where no backward pass follows, besides the experts' input."""
    if how.fused:  # the products and results of the choices, their sum
        return (k * (width + dim) + dim) * how.element
    # Gate and up with copies in FP32, silu(gate) and the product: 16 bytes in either precision.
    if how.device_type == "cpu" and not how.compiled:  # one expert's part of the choices
        return 4 * dim + k * (16 * width + dim * (how.element + 8)) // n
    return 16 * n * width
