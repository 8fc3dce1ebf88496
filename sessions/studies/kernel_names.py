"""Short names of kernels: C++ names lose their types and arguments.

ATen's kernels for elementwise operators, reductions and lists of tensors are templates over the
computation; their functor says more than the kernel's name, and follows it.
"""

from __future__ import annotations

import re

_NOWHERE = "(anonymous namespace)::"
_SIGNATURE = re.compile(r"(?:void )?(?:\w+::)*(\w+)(?P<template><)?(?(template)|\()")
# The work of a template: ``sum_functor``, ``FusedAdamMathFunctor``, ``direct_copy_kernel_cuda(``,
# ``LogSoftMaxForwardEpilogue``.
_WORK = re.compile(r"\w*[fF]unctor\w*|\w+_kernel(?:_cuda|_impl)?(?=\()|\w+Epilogue")


def brief(name: str) -> str:
    """Return ``vectorized_elementwise_kernel, FillFunctor`` for ATen's hundreds of characters.

    A name that is not a C++ signature is returned unchanged.
    """
    signature = name.replace(_NOWHERE, "")
    match = _SIGNATURE.match(signature)
    if match is None:
        return name
    work = _WORK.search(_template(signature[match.end() :])) if match["template"] else None
    return f"{match[1]}, {work[0]}" if work else match[1]


def _template(tail: str) -> str:
    """Return the arguments of a template; ``tail`` begins after its opening bracket."""
    depth = 1
    for position, character in enumerate(tail):
        depth += (character == "<") - (character == ">")
        if not depth:
            return tail[:position]
    return tail
