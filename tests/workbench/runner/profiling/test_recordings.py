"""CUDA graphs that Inductor records, leaves out and replays; its tree and its log are played."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from workbench.runner.profiling.probes import recordings
from workbench.runner.toggles import all_toggles
from workbench.runner.variants.compiles import Compiles

LOG = logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs")
MUTATES = """skipping cudagraphs due to mutated inputs (2 instances). Found from :
   File "/a/library.py", line 7, in call
    return self.forward(x)
  File "/somewhere/model.py", line 42, in forward
    cache.copy_(x)
"""


@pytest.fixture
def tree(monkeypatch):
    """Return a tree of two graphs, of which one follows the other, that replayed last."""
    last = SimpleNamespace(id=2, children={})
    first = SimpleNamespace(id=1, children={"backward": [last]})
    made = SimpleNamespace(roots={"forward": [first]}, path_state=SimpleNamespace(name="EXECUTION"))
    trees = SimpleNamespace(get_manager=lambda index, create_if_none_exists: made)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return made


def finding_for(**compiled) -> tuple[str, str]:
    observed = SimpleNamespace(compiles=Compiles(graphs=2, **compiled))
    finding = all_toggles()["compile"].evidence("reduce-overhead", observed)
    return finding.status, finding.text.partition("; ")[2]


def test_graphs_count_from_the_tree_and_their_replay_is_seen(tree):
    assert recordings.recorded() == {1, 2}
    assert finding_for(recordings=2) == (
        "effective",
        "2 CUDA graphs recorded, replayed in the last step",
    )
    tree.path_state.name = "RECORDING"
    text = "2 CUDA graphs recorded; the last step replayed none of them"
    assert finding_for(recordings=2) == ("no effect", text)


def test_no_skip_is_no_proof_that_anything_was_recorded(tree):
    tree.roots = None
    assert recordings.recorded() == frozenset()
    assert finding_for() == ("no effect", "0 CUDA graphs recorded")


def test_a_skip_is_told_with_inductors_reason_and_the_models_line(tree):
    reasons: Counter[str] = Counter()
    with recordings.skips(reasons):
        LOG.warning(MUTATES)
        LOG.warning("skipping cudagraphs due to cpu device (arg0_1)")
        LOG.warning("CUDAGraph supports dynamic shapes by recording a new graph for each size")
    LOG.warning("skipping cudagraphs due to what others do")
    expected = "mutated inputs (2 instances) (model.py:42 in forward); cpu device (arg0_1)"
    text = f"0 CUDA graphs recorded, skipped 2 times because of {expected}"
    assert finding_for(cudagraph_skips=2, skip_reasons=reasons) == ("no effect", text)
    text = f"1 CUDA graph recorded, skipped 2 times because of {expected}"
    finding = finding_for(cudagraph_skips=2, skip_reasons=reasons, recordings=1)
    assert finding == ("effective", f"{text}, replayed in the last step")


class Tree:
    """A tree as far as it runs a function."""

    def __init__(self) -> None:
        self.ids_to_funcs = {7: SimpleNamespace(model=lambda inputs: ("launched", *inputs))}
        self.after: list[int] = []

    def run(self, inputs, function):
        out = self._run(inputs, function)
        self.after.append(function)
        return out

    def _run(self, inputs, function):
        return ("replayed", *inputs)


def test_what_was_recorded_is_launched_inside_and_replayed_again_after(monkeypatch):
    made = Tree()
    trees = SimpleNamespace(get_manager=lambda index, create_if_none_exists: made)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    run = made.run  # Inductor keeps the method, and not the tree
    assert recordings.can_launch(0) and run([1], 7) == ("replayed", 1)
    with pytest.raises(RuntimeError, match="in the step"), recordings.launched(0):
        assert run([2], 7) == ("launched", 2)
        raise RuntimeError("in the step")
    assert run([3], 7) == ("replayed", 3) and made.after == [7, 7, 7]


def test_a_tree_that_works_otherwise_or_recorded_nothing_is_left_alone(monkeypatch):
    empty = Tree()
    empty.ids_to_funcs.clear()
    for made in (empty, SimpleNamespace(ids_to_funcs={7: None}), None):
        trees = SimpleNamespace(get_manager=lambda index, create_if_none_exists, made=made: made)
        monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
        assert not recordings.can_launch(0)
