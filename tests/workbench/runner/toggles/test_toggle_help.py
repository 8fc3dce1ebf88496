"""The help of a toggle says when it pays by an example with numbers: measured, or counted.

The example may be of any device, which it names: a newcomer measures on the machine at hand.
"""

from __future__ import annotations

import re

import pytest

from workbench.runner.toggles import all_toggles

# "on" and a device: a word with a capital letter before a digit or another capital (H200, CPU).
EXAMPLE = re.compile(r"\b[Oo]n (\w+ )?[A-Z]+[A-Z\d]\S*( \d+)?|\b[Cc]ounted\b")


@pytest.mark.parametrize("name", all_toggles())
def test_the_help_has_an_example_measured_or_counted(name):
    text = " ".join(all_toggles()[name].help.split())
    sentences = re.split(r"(?<=[.;]) (?=[A-Z])", text)
    examples = [sentence for sentence in sentences if EXAMPLE.search(sentence)]
    assert examples, f"{name}: its help names no device of an example, nor says what was counted"
    figures = [EXAMPLE.sub("", sentence) for sentence in examples]
    assert any(re.search(r"\d", figure) for figure in figures), f"{name}: no number in its example"


@pytest.mark.parametrize(
    ("sentence", "is_example"),
    [
        ("On an H200 in BF16, 88 us.", True),
        ("Measured on a CPU: 1.2 times as fast.", True),
        ("Counted for HYDRA large: 0.95 of the FLOPs.", True),
        ("It took 30 ms on 8 RTX 4090s.", True),
        ("Depends on the model.", False),
        ("It is fast on a good day.", False),
    ],
)
def test_an_example_names_its_device_or_is_counted(sentence, is_example):
    assert bool(EXAMPLE.search(sentence)) == is_example
