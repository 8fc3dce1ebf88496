"""Bugs to plant in the kernel of products of few rows, as in ``test_planted_bugs``."""

LINEAR = "kernels.linear._kernels"
FEW_ROWS = {"rows": 3, "k": 100, "n": 33, "bias": True}
PRODUCT_BUGS = {
    "linear: the last output is left out": (
        LINEAR,
        "m_n = o_n < n_outputs\n",
        "m_n = o_n < n_outputs - 1\n",
        None,
    ),
    "linear: the last row is left out": (
        LINEAR,
        "m_m = o_m < n_rows\n",
        "m_m = o_m < n_rows - 1\n",
        FEW_ROWS,
    ),
    "linear: only the last step reaches the sum": (
        LINEAR,
        "acc=b_y, input",
        "input",
        FEW_ROWS | {"k": 1040},
    ),
    "linear: the sums of a step read the same inputs": (
        LINEAR,
        "tl.arange(0, SPLIT)[:, None, None] * BLOCK_K",
        "tl.zeros([SPLIT, 1, 1], tl.int32)",
        FEW_ROWS,
    ),
    "linear: the last input is left out": (
        LINEAR,
        "m_m[None, None, :] & (o_x_k < K)",
        "m_m[None, None, :] & (o_x_k < K - 1)",
        None,
    ),
    "linear: the bias is left out": (LINEAR, "if HAS_BIAS:", "if False:", FEW_ROWS),
}
