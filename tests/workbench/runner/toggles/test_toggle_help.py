"""The help of a toggle says when it pays by an example with numbers: measured, or counted."""

from __future__ import annotations

import re

import pytest

from workbench.runner.toggles import all_toggles


@pytest.mark.parametrize("name", all_toggles())
def test_the_help_has_an_example_measured_or_counted(name):
    text = " ".join(all_toggles()[name].help.split())
    sentences = re.split(r"(?<=[.;]) (?=[A-Z])", text)
    known = [one for one in sentences if "H200" in one or re.search(r"\bcounted\b", one, re.I)]
    assert known, f"{name}: says of no example that it was measured on an H200, or counted"
    figures = [one.replace("H200", "") for one in known]
    assert any(re.search(r"\d", one) for one in figures), f"{name}: its example has no number"
