"""Evidence and dropped losses free the autograd graph of a training step.

A graph that stays takes memory, and its nodes stay on the stream that first saw the parameters, so
that later steps cannot be captured.
"""

from __future__ import annotations

import msgspec
import pytest
import torch
from built_arms import configuration, stepped
from torch import Tensor, nn

from workbench.runner.config.availability import blocked_options
from workbench.runner.config.resolve import resolve
from workbench.runner.toggles import all_toggles
from workbench.runner.toggles._ranks import KINDS
from workbench.runner.variants.offload import Offload

FAMILIES = ("hydra", "moe", "mamba2", "adaattn", "mahia")
SLOW = [name if name == "moe" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
BATCH = 4
# No new graphs of ours; several ranks, whose engine holds the nodes for its hooks.
LEFT_OUT = {"compile", "compile_scope", "compile_shapes", *KINDS}


class Accumulators:
    """The nodes that accumulate gradients of parameters; torch makes them anew once they died."""

    def __init__(self, parameters) -> None:
        self._parameters = [x for x in parameters if x.requires_grad]
        self._nodes = self._current()
        for node in self._nodes:
            node.metadata["marked"] = True

    def _current(self):
        views = [x.expand_as(x) for x in self._parameters]
        return [view.grad_fn.next_functions[0][0] for view in views]

    def alive(self) -> int:
        """Return how many of them something else than this object refers to."""
        self._nodes.clear()
        return sum("marked" in node.metadata for node in self._current())


def test_a_graph_that_is_alive_is_seen():
    x = torch.randn(3, requires_grad=True)
    nodes = Accumulators([x])
    y = x.sin()
    assert nodes.alive() == 1
    nodes = Accumulators([x])
    del y
    assert nodes.alive() == 0


def options(family: str) -> list[tuple[str, str]]:
    """Return the options of every toggle that a CPU can use alone, the last of each toggle."""
    base = configuration(family, "train", BATCH)
    blocked = blocked_options(resolve(base, torch.device("cpu")))
    return [
        (name, usable[-1])
        for name, toggle in all_toggles().items()
        if name not in LEFT_OUT
        and (usable := [o for o in toggle.options if o not in blocked.get(name, {})])
        and usable[-1] != toggle.default
    ]


@pytest.mark.parametrize("family", SLOW)
def test_evidence_of_no_option_keeps_a_graph(family):
    leaking = {}
    assert len(options(family)) > 10
    for name, option in options(family):
        base = configuration(family, "train", BATCH)
        arm = stepped(msgspec.structs.replace(base, toggles={name: option}))
        nodes = Accumulators(arm.model.parameters())
        arm.find_evidence()
        if alive := nodes.alive():
            leaking[name, option] = alive
    assert not leaking


@pytest.mark.parametrize("mode", ["full", "selective", "operators"])
def test_evidence_of_checkpointing_keeps_no_graph(mode):
    arm = stepped(configuration("moe", "train", BATCH, toggles={"checkpointing": mode}))
    nodes = Accumulators(arm.model.parameters())
    arm.find_evidence()
    assert not nodes.alive()


def test_a_loss_that_is_dropped_takes_its_offloaded_activations_along():
    layers = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Softmax(-1))
    nodes = Accumulators(layers.parameters())
    x: Tensor = torch.randn(4, 8)
    loss = Offload(lambda x: layers(x).sum(), layers.parameters())(x)  # outputs are saved, small
    assert loss.requires_grad
    del loss
    assert not nodes.alive()
