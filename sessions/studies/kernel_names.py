"""Names of kernels as a person reads them: C++ ones have their types and arguments taken off.

Of a kernel that is a template over what it computes, as those of ATen for elementwise operators,
reductions and lists of tensors are, the functor says more than the kernel.
"""

from __future__ import annotations

import re

_NOWHERE = "(anonymous namespace)::"
_SIGNATURE = re.compile(r"(?:void )?(?:\w+::)*(\w+)(?P<template><)?(?(template)|\()")
# What a template computes: ``sum_functor``, ``FusedAdamMathFunctor``, ``direct_copy_kernel_cuda(``,
# ``LogSoftMaxForwardEpilogue``.
_WORK = re.compile(r"\w*[fF]unctor\w*|\w+_kernel(?:_cuda|_impl)?(?=\()|\w+Epilogue")


def brief(name: str) -> str:
    """Return ``vectorized_elementwise_kernel, FillFunctor`` for ATen's hundreds of characters.

    A name that is no C++ signature stays as it is.
    """
    signature = name.replace(_NOWHERE, "")
    match = _SIGNATURE.match(signature)
    if match is None:
        return name
    work = _WORK.search(_template(signature[match.end() :])) if match["template"] else None
    return f"{match[1]}, {work[0]}" if work else match[1]


def _template(rest: str) -> str:
    """Return the arguments of a template, whose opening bracket was taken off already."""
    depth = 1
    for position, character in enumerate(rest):
        depth += (character == "<") - (character == ">")
        if not depth:
            return rest[:position]
    return rest
