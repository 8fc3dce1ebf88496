"""What a router and its experts hold where the operators are PyTorch's, and at work.

On a GPU, and compiled, these take every token through every expert; on a CPU through those that it
chose. Bytes a token; ``dim`` is the tokens' width and ``width`` an expert's, of ``n`` a token
chooses ``k``.
"""

from __future__ import annotations

from models._costs import Held, How


def experts_by_torch(how: How, *, dim: int, width: int, n: int, k: int) -> Held:
    """Beside the router's probabilities, which fused kernels keep too, and the experts' input."""
    element = how.element
    if how.compiled:
        # Each expert's result, which autocast leaves as it is; with gate, up and their product.
        result = dim * (2 if how.autocast else 4)
        # The router's input, where that is a copy; sums of weights, the sorted choices and
        # their order (int64).
        routing = (dim if how.stream < 4 else 0) + 2 + k + 2 * n
        return Held(
            # Also whether an expert is each of the choices (bool).
            kept_per_token=4 * routing + n * (3 * width * element + result + k),
            # The gradients of the product, of gate and of up, while product and result are
            # gone; or that of the result.
            backward_per_token=n * max(2 * width * element - result, dim * element),
            # Gate and up, laid out anew; of autocast's copies these are all that is kept.
            kept=0 if how.autocast else 2 * n * width * dim * element,
        )
    # The router's input, where that is a copy, and its order (int64); k times a weight twice.
    kept = 4 * ((dim if element < 4 else 0) + 2 * n + 2 * k)
    # Of an expert: gate, up and silu(gate) in FP32, their product, the result in FP32.
    of_one = (3 * 4 + element) * width + 4 * dim
    if how.device_type == "cpu":
        # Its token, the result times its weight; that weight, and both places (int64).
        kept += k * (of_one + dim * element + 4 * dim + 5 * 4)
        kept -= dim * element if element < 4 else 0  # of the router's input the copy alone
        return Held(kept_per_token=kept, backward_per_token=3 * 4 * width)
    at_most = max(8 * dim + (3 * 4 + element) * width, 6 * 4 * width)
    return Held(
        # Also its weight, and whether it is each of the choices (bool).
        kept_per_token=kept + n * (of_one + 4 + k),
        # The gradients of the result, twice; or of gate, up and the two products in FP32.
        backward_per_token=n * (at_most - of_one),
        kept=2 * n * width * dim * element,  # gate and up, laid out anew
    )


def experts_at_work(how: How, *, dim: int, width: int, n: int, k: int) -> int:
    """At most where no backward pass follows, beside the experts' input."""
    if how.fused:  # the products and results of the choices, their sum
        return (k * (width + dim) + dim) * how.element
    # Gate and up with copies in FP32, silu(gate) and the product: 16 bytes in either precision.
    if how.device_type == "cpu" and not how.compiled:  # one expert's share of the choices
        return 4 * dim + k * (16 * width + dim * (how.element + 8)) // n
    return 16 * n * width
