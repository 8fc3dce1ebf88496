"""A profiler knows a kernel by its name alone: that says whose it is, and what it does."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import kernels
from sessions.studies import breakdown
from sessions.tracing import kinds

FOLDER = Path(kernels.__file__).parent
LAUNCHED = [
    (file.relative_to(FOLDER), name)
    for file in sorted(FOLDER.rglob("*.py"))
    for name in re.findall(r"= launcher\((\w+)\)", file.read_text(encoding="utf-8"))
]
# What operators share has the name of what it computes.
SHARED = {"_gated.py": "gated_activation", "_qk_kernels.py": "qk", "column_sum.py": "column_sum"}


def test_no_two_kernels_have_one_name():
    counts = Counter(name for _, name in LAUNCHED)
    assert len(counts) > 40 and counts.most_common(1)[0][1] == 1, counts.most_common(3)


@pytest.mark.parametrize(("file", "name"), LAUNCHED, ids=[name for _, name in LAUNCHED])
def test_a_kernel_is_named_for_its_operator_and_has_a_class(file, name):
    folder = file.parts[0].removesuffix(".py")
    operator = SHARED.get(file.name, folder)
    assert re.fullmatch(rf"_?{operator}(_\w+)?_kernel", name)
    assert kinds.kind_of(name) != kinds.OTHER
    assert kinds.kind_of(name) in breakdown.KINDS


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("moe_experts_product_kernel", "matrix product"),
        ("moe_experts_combine_kernel", "routing"),
        ("gated_rms_norm_forward_kernel", "normalisation"),
        ("_gated_activation_forward_kernel", "elementwise"),
        ("adaptive_attention_dq_kernel", "attention"),
        ("moe_gating_forward_kernel", "routing"),
        ("ssd_scan_kernel", "scan"),
        ("qk_backward_kernel", "elementwise"),
    ],
)
def test_own_kernels_have_the_class_of_their_work(name, kind):
    assert kinds.kind_of(name) == kind
