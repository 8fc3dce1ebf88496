"""Right gradients of cuDNN's attention, also in models that call torch's functions.

Torch keeps the plan of a backward pass by the layouts of queries, keys and values. The plan also
holds the layout of the output's gradient, which is not compared: where a second layout came, all
gradients were wrong without an error (relative error 1.4, torch 2.11, cuDNN 9.19, H200; see
pytorch/pytorch pull request 191576). Steps that were compiled, captured or compared with others in
one process differ in that layout. Here the gradient always gets the layout of the output, and is
copied where it has another one.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

_NAME = "_scaled_dot_product_cudnn_attention_backward"
_ALIGNED = 16  # bytes, which cuDNN's loads need


def like_output(grad: Tensor, out: Tensor) -> Tensor:
    """Return the gradient in the layout of ``out``, at an aligned address; copied if it was not."""
    if grad.stride() == out.stride() and grad.data_ptr() % _ALIGNED == 0:
        return grad
    return torch.empty_like(out).copy_(grad)


def repair() -> torch.library.Library | None:
    """Register the repaired backward pass in place of torch's; None where torch has no CUDA.

    The repair holds as long as the returned library is kept.
    """
    if torch.version.cuda is None:
        return None
    original = torch.library.get_kernel(f"aten::{_NAME}", "CUDA")

    def backward(
        keys: Any,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        *rest: Any,
        **more: Any,
    ) -> Any:
        return original.call_boxed(keys, like_output(grad, out), q, k, v, out, *rest, **more)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that a kernel is replaced
        library.impl(_NAME, backward, "CUDA", with_keyset=True)
    return library
