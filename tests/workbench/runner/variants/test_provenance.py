"""Inductor's records: which nodes of a graph each generated kernel computes."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from workbench.runner.profiling import provenance
from workbench.runner.profiling.provenance import NOWHERE


def written() -> tuple[torch.fx.GraphModule, dict[str, list[str]]]:
    """Return a graph as Inductor has it at last, and what Inductor reports of its calls."""
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    inner = {
        "1": ("L['model'].blocks.0", object),
        "2": ("L['model'].blocks.0.down", torch.nn.Linear),
    }
    outer = {"1": inner["1"]}

    def node(target, *args, **meta):
        made = graph.call_function(target, args)
        made.meta.update(meta)
        return made.name, made

    x = graph.placeholder("x")
    names = {}
    names["view"], view = node(aten.permute.default, x, [1, 0], nn_module_stack=outer)
    names["product"], product = node(aten.mm.default, view, x, nn_module_stack=inner)
    names["other"], other = node(aten.mul.Tensor, product, 2, fwd_nn_module_stack=outer)
    names["loss"], loss = node(
        aten.sum.default, other, stack_trace="loss.py", partitioner_tag="is_forward"
    )
    names["lossback"], back = node(
        aten.expand.default, loss, [2], fwd_nn_module_stack=None, partitioner_tag="is_backward"
    )
    names["added"], added = node(
        aten.add.Tensor, back, loss, stack_trace="any.py", partitioner_tag="is_backward"
    )
    graph.output(added)
    calls = {
        "triton_poi_fused_mm_0:1": [names["view"], names["product"], x.name],
        "torch.ops.aten.mul.Tensor:2": [names["product"], names["other"]],
        "triton_poi_fused_mm_0:3": [names["view"]],
        "triton_red_fused_sum_1:4": [names["loss"], names["other"], "not in the graph"],
        "triton_poi_fused_expand_2:5": [names["lossback"]],
        "triton_poi_fused_add_3:6": [names["added"], names["other"]],
    }
    return torch.fx.GraphModule({}, graph), calls


def test_calls_are_told_with_the_modules_of_the_nodes_that_they_compute():
    graph, calls = written()
    block, down = ("L['model'].blocks.0", "object"), ("L['model'].blocks.0.down", "Linear")
    assert provenance._calls(calls, graph) == (
        ("triton_poi_fused_mm_0", (down,)),  # a view computes nothing
        ("torch.ops.aten.mul.Tensor", (block,)),  # what leads up to a library's call is not its
        ("triton_poi_fused_mm_0", (block,)),
        ("triton_red_fused_sum_1", (NOWHERE, block)),
        ("triton_poi_fused_expand_2", (NOWHERE,)),
        ("triton_poi_fused_add_3", (block,)),  # whose the sum of two gradients is, nobody knows
    )


def test_a_graph_is_made_also_where_inductor_cannot_be_understood():
    class Graph:
        def __init__(self, gm):
            self.gm = gm

    Graph.__init__ = provenance._knowing(Graph.__init__)
    made = Graph(gm=SimpleNamespace())  # which has no modules
    assert made.gm is not None and made._workbench_calls == ()


def test_what_inductor_said_of_one_graph_is_not_told_of_the_next(monkeypatch):
    class Graph:
        def __init__(self, gm):
            self.gm = gm

    graph, calls = written()
    kernel_nodes: dict[str, list[str]] = {}
    debug = SimpleNamespace(_inductor_triton_kernel_to_post_grad_node_info=kernel_nodes)
    monkeypatch.setitem(sys.modules, "torch._inductor.debug", debug)
    Graph.__init__ = provenance._knowing(Graph.__init__)
    for _ in range(2):  # as of backward passes, between which Inductor forgets nothing by itself
        kernel_nodes |= calls
        assert Graph(gm=graph)._workbench_calls == provenance._calls(calls, graph)
        calls = {f"{name}0": nodes for name, nodes in calls.items()}  # it counts on


@pytest.mark.slow
def test_compiled_once_more_in_the_same_process_each_graph_has_its_own_calls():
    program = """
import torch
from workbench.runner.profiling import provenance
provenance.keep()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
for options in ({}, {"cpp.simdlen": 0}):
    torch._dynamo.reset()
    torch.compile(model, options=options)(torch.ones(2, 8)).sum().backward()
counted = [len(calls) for calls in provenance.known().values()]
assert len(counted) == 4 and len(set(counted)) == 2, provenance.known()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_the_user_asked_inductor_for_stays(monkeypatch):
    monkeypatch.setenv("INDUCTOR_PROVENANCE", "1")
    provenance.ask()
    assert os.environ["INDUCTOR_PROVENANCE"] == "1"


def test_nothing_is_asked_of_inductor_that_steps_pay_for(monkeypatch):
    monkeypatch.delenv("INDUCTOR_PROVENANCE", raising=False)
    monkeypatch.delenv("TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE", raising=False)
    provenance.ask()
    assert os.environ["INDUCTOR_PROVENANCE"] == "2"
    assert "TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE" not in os.environ
