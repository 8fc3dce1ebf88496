"""Whose each kernel is that Inductor generates: found while it compiles, and kept with the graph.

Dynamo notes of each node of a graph which module called it, and AOTAutograd gives a node of the
backward pass the module of its forward one. Inductor, asked for provenance (level 2, which adds
comments to what it writes and changes no kernel), says which nodes each of its calls computes, in
the order of the calls. Both are there when a compiled graph is made, and only then: what they say
together is put into it, and so is in Inductor's cache too. The cache knows graphs by what they
compute, so that one of the same mathematics has the names of the module that was compiled first.

That is asked for whenever something is compiled, whether it will be profiled or not: it takes 0.03
to 0.07 s of the 22 to 48 s of CPU time that compiling a training step takes (*tiny* HYDRA, Mamba-2
and MoE with six blocks on a CPU, torch 2.15, without the time of the C++ compiler), 0.2 % at most.
The level is a part of the key of Inductor's cache, which programs that do not ask cannot share.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Of a call: Inductor's name for it, and the modules of its nodes, each by path and class; one
# whose path is empty is no module. Plain tuples, because any program may read Inductor's cache.
Call = tuple[str, tuple[tuple[str, str], ...]]
NOWHERE = ("", "")  # that a node lies in no module is known

_KEPT = "_workbench_calls"
# C++ kernels are in a trace only with TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE=1. That is left to
# the user: it costs each call of a kernel about a microsecond, in steps that are timed too.
_VARIABLE, _LEVEL = "INDUCTOR_PROVENANCE", "2"


def ask() -> None:
    """Ask Inductor for provenance, in every thread: so before its configuration is loaded.

    What the user asked for stays.
    """
    os.environ.setdefault(_VARIABLE, _LEVEL)


def keep() -> None:
    """Let every graph that is compiled from now on know its calls; imports Inductor."""
    ask()
    from torch._inductor import config, output_code

    if not config.trace.provenance_tracking_level:  # loaded before it was asked
        config.trace.provenance_tracking_level = int(_LEVEL)
    made: Any = output_code.CompiledFxGraph
    if not hasattr(made.__init__, _KEPT):
        made.__init__ = _knowing(made.__init__)


def known() -> dict[str, tuple[Call, ...]]:
    """The calls of each compiled graph that this process holds, by Inductor's key for it."""
    code = sys.modules.get("torch._inductor.output_code")
    if code is None:
        return {}
    graphs = (one for one in gc.get_objects() if type(one) is code.CompiledFxGraph)
    calls = {str(one._fx_graph_cache_key): getattr(one, _KEPT, ()) for one in graphs}
    return {key: found for key, found in calls.items() if found}


def _knowing(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        try:
            told = sys.modules[
                "torch._inductor.debug"
            ]._inductor_triton_kernel_to_post_grad_node_info
            calls = _calls(told, signature.bind(self, *args, **kwargs).arguments["gm"])
            told.clear()  # or the next backward pass that is compiled would have these calls too
        except Exception:  # noqa: BLE001 - what Inductor holds inside may change; to compile counts
            calls = ()
        setattr(self, _KEPT, calls)

    setattr(made, _KEPT, True)
    return made


def _calls(told: Mapping[str, Sequence[str]], graph: Any) -> tuple[Call, ...]:
    """The calls of a graph that was just compiled; ``told`` are Inductor's names of their nodes."""
    import torch

    nodes: dict[str, list[Any]] = defaultdict(list)
    for module in graph.modules():  # a graph within a graph may have nodes of the same names
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                nodes[node.name].append(node)
    found = []
    for numbered, names in told.items():
        name = numbered.rpartition(":")[0] or numbered
        found.append((name, _places(name, [node for one in names for node in nodes[one]])))
    return tuple(found)


def _places(name: str, nodes: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """The modules of the nodes that one call computes, each once."""
    computed = [node for node in nodes if node.op == "call_function"]
    # A library's call is the one node of its name; Inductor lists what leads up to it as well.
    own = [node for node in computed if str(node.target) == name.removeprefix("torch.ops.")]
    work = own or [node for node in computed if not _is_view(node.target)] or computed
    places = (_place(node.meta) for node in work)
    return tuple(dict.fromkeys(one for one in places if one is not None))


def _place(meta: dict[str, Any]) -> tuple[str, str] | None:
    """Path and class of the innermost module that a node was called in; None where nobody knows."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if stack:
        path, kind = list(stack.values())[-1]
        return str(path), getattr(kind, "__name__", None) or str(kind).rpartition(".")[2]
    forward = "stack_trace" in meta and meta.get("partitioner_tag") != "is_backward"
    return NOWHERE if forward or "fwd_nn_module_stack" in meta else None


def _is_view(target: Any) -> bool:
    return bool(getattr(target, "is_view", False)) or getattr(target, "__name__", "") == "getitem"
