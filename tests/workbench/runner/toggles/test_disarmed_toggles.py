"""No toggle claims an effect that it did not have: each is built with its application taken out."""

from __future__ import annotations

import pytest
from disarmed import CHOICES, disarmed

from workbench.runner.toggles import all_toggles

SLOW = ("max-autotune", "max-autotune-no-cudagraphs")


def assert_not_claimed(name, option, device):
    status, text = disarmed(name, option, device)
    assert text
    # Plain PyTorch, and what the model's own fields say, run without the option too.
    means_off = option == "torch" or all_toggles()[name].configure is not None
    assert status == "no effect" or (status == "as default" and means_off), text


@pytest.mark.sample(60)
@pytest.mark.parametrize(("name", "option"), CHOICES, ids=lambda value: value)
def test_a_toggle_that_changes_nothing_shows_no_effect(name, option):
    assert_not_claimed(name, option, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "option"), [c for c in CHOICES if c[1] not in SLOW], ids=lambda value: value
)
def test_on_a_gpu_too_a_toggle_that_changes_nothing_shows_no_effect(name, option):
    assert_not_claimed(name, option, "cuda")
