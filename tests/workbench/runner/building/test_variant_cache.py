"""Which of the configurations built before are kept, and which make room."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch

from sessions.model import Configuration
from workbench.runner.building import variant_cache
from workbench.runner.building.variant_cache import VariantCache


def situation(option: str) -> SimpleNamespace:
    configuration = Configuration(family="hydra", preset="tiny", toggles={"attention": option})
    return SimpleNamespace(configuration=configuration, device=torch.device("cpu"))


@pytest.fixture
def arms(monkeypatch):
    """Let variants be built quickly."""
    monkeypatch.setattr(VariantCache, "_build", lambda self, situation, phases, copy: built())
    monkeypatch.setattr(VariantCache, "restart_if_ruined", lambda self, variant: False)
    return VariantCache()


class Built:
    """The parts of an arm, and of a model, that freeing them needs."""

    trainer = divided = None
    situation = SimpleNamespace(device=torch.device("cpu"))

    def __init__(self, model=None) -> None:
        self.model = model


def built() -> Built:
    return Built(Built())


def stored(arms, options: str) -> str:
    return "".join(option for option in options if arms.has(situation(option)))


def test_what_was_built_is_kept_while_there_is_memory(arms):
    first = arms.get(situation("a"), None)
    arms.get(situation("b"), None)
    assert arms.get(situation("a"), None) is first
    assert arms.count == 2


def test_the_least_recently_used_go_while_memory_is_short(arms, monkeypatch):
    for option in "abca":
        arms.get(situation(option), None)
    monkeypatch.setattr(variant_cache, "is_short", lambda device: arms.count > 1)
    arms.get(situation("d"), None)
    assert stored(arms, "abcd") == "ad"


@pytest.mark.parametrize(("wanted", "left"), [(0, "abcd"), (6, "abcd"), (7, "bcd"), (99, "b")])
def test_a_check_frees_only_as_many_as_it_needs_and_not_its_own(arms, monkeypatch, wanted, left):
    for option in "acdb":
        arms.get(situation(option), None)
    checked = arms.get(situation("b"), None)
    monkeypatch.setattr(variant_cache, "free_bytes", lambda device: 10 - arms.count)
    arms.make_room(wanted, checked)
    assert stored(arms, "abcd") == left


def test_the_number_kept_is_bounded(arms, monkeypatch):
    monkeypatch.setattr(variant_cache, "KEPT_VARIANTS", 3)
    for option in "abcd":
        arms.get(situation(option), None)
    assert stored(arms, "abcd") == "bcd"


@pytest.mark.parametrize("which", ["model", "arm"])
def test_one_that_holds_itself_is_gone_before_the_next_is_built(arms, monkeypatch, which):
    """Show that an arm in a cycle goes, as what was compiled holds itself in one."""
    monkeypatch.setattr(variant_cache, "KEPT_VARIANTS", 1)
    first = arms.get(situation("a"), None)
    (first.model if which == "model" else first).itself = first
    left = weakref.ref(first.model)
    del first
    gone = []
    monkeypatch.setattr(
        VariantCache, "_build", lambda self, *_: gone.append(left() is None) or built()
    )
    arms.get(situation("b"), None)
    assert gone == [True]


def test_all_can_be_freed_at_once(arms):
    for option in "abc":
        arms.get(situation(option), None)
    assert arms.forget_variants() == 3
    assert arms.count == 0


@pytest.mark.gpu
def test_a_gpu_that_is_nearly_full_is_short_of_memory():
    device = torch.device("cuda", 0)
    assert not variant_cache.is_short(device)
    free, total = torch.cuda.mem_get_info(device)
    filler = torch.empty(int(free - 0.2 * total), dtype=torch.uint8, device=device)
    assert variant_cache.is_short(device)
    del filler
    assert not variant_cache.is_short(device)
