"""Provenance of generated kernels: the modules that each kernel computes, recorded at compilation.

Dynamo records for each node of a graph which module called it, and AOTAutograd gives a node of the
backward pass the module of its forward node. With provenance tracking (level 2, which adds comments
to the generated code and changes no kernel), Inductor records which nodes each of its calls
computes, in the order of the calls. Both records exist only while a compiled graph is made. Their
combination is stored in the graph, and so in Inductor's cache too. The cache identifies graphs by
their computation, so graphs with the same mathematics share the names of the module that was
compiled first.

Tracking is on for every compilation, whether or not it will be profiled, because it costs 0.2 % at
most: 0.03 to 0.07 s of the 22 to 48 s of CPU time to compile a training step (*tiny* HYDRA, Mamba-2
and MoE with six blocks on a CPU, torch 2.15, without the time of the C++ compiler). The level is
part of the key of Inductor's cache, so programs without tracking cannot share its entries.
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

# Inductor's name of a call, and the modules of its nodes as pairs of path and class; an empty path
# means no module. Plain tuples, because any program may read Inductor's cache.
Call = tuple[str, tuple[tuple[str, str], ...]]
NOWHERE = ("", "")  # a node that is known to lie in no module

_CALLS = "_workbench_calls"
# C++ kernels appear in a trace only with TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE=1. The user
# decides about that: it costs about a microsecond per call of a kernel, also in timed steps.
_VARIABLE, _LEVEL = "INDUCTOR_PROVENANCE", "2"


def ask() -> None:
    """Enable provenance tracking for all threads; call this before Inductor's configuration loads.

    A value that the user set in the environment remains.
    """
    os.environ.setdefault(_VARIABLE, _LEVEL)


def keep() -> None:
    """Store the calls in every graph that is compiled afterwards; imports Inductor."""
    ask()
    from torch._inductor import config, output_code

    if not config.trace.provenance_tracking_level:  # Inductor was loaded before ``ask``
        config.trace.provenance_tracking_level = int(_LEVEL)
    graph_class: Any = output_code.CompiledFxGraph
    if not hasattr(graph_class.__init__, _CALLS):
        graph_class.__init__ = _knowing(graph_class.__init__)


def known() -> dict[str, tuple[Call, ...]]:
    """Return the calls of each compiled graph of this process, by Inductor's key for it."""
    code = sys.modules.get("torch._inductor.output_code")
    if code is None:
        return {}
    graphs = (item for item in gc.get_objects() if type(item) is code.CompiledFxGraph)
    calls = {str(item._fx_graph_cache_key): getattr(item, _CALLS, ()) for item in graphs}
    return {key: value for key, value in calls.items() if value}


def _knowing(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        try:
            calls_to_nodes = sys.modules[
                "torch._inductor.debug"
            ]._inductor_triton_kernel_to_post_grad_node_info
            calls = _calls(calls_to_nodes, signature.bind(self, *args, **kwargs).arguments["gm"])
            # otherwise the next backward pass that is compiled would have these calls too
            calls_to_nodes.clear()
        except Exception:  # noqa: BLE001 - Inductor's internals may change; compiling must succeed
            calls = ()
        setattr(self, _CALLS, calls)

    setattr(made, _CALLS, True)
    return made


def _calls(call_nodes: Mapping[str, Sequence[str]], graph: Any) -> tuple[Call, ...]:
    """Return the calls of a newly compiled graph; ``call_nodes`` maps calls to node names."""
    import torch

    nodes: dict[str, list[Any]] = defaultdict(list)
    for module in graph.modules():  # nested graphs may have nodes of the same names
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                nodes[node.name].append(node)
    result = []
    for numbered, names in call_nodes.items():
        name = numbered.rpartition(":")[0] or numbered
        result.append(
            (name, _modules(name, [node for node_name in names for node in nodes[node_name]]))
        )
    return tuple(result)


def _modules(name: str, nodes: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """Return the distinct modules of the nodes that a call computes."""
    computed = [node for node in nodes if node.op == "call_function"]
    # A library's call is the node of its own name; Inductor also lists the nodes before it.
    named_nodes = [node for node in computed if str(node.target) == name.removeprefix("torch.ops.")]
    work = named_nodes or [node for node in computed if not _is_view(node.target)] or computed
    modules = (_module(node.meta) for node in work)
    return tuple(dict.fromkeys(module for module in modules if module is not None))


def _module(meta: dict[str, Any]) -> tuple[str, str] | None:
    """Return path and class of the innermost module that called a node; None if unknown."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if stack:
        path, kind = list(stack.values())[-1]
        return str(path), getattr(kind, "__name__", None) or str(kind).rpartition(".")[2]
    forward = "stack_trace" in meta and meta.get("partitioner_tag") != "is_backward"
    return NOWHERE if forward or "fwd_nn_module_stack" in meta else None


def _is_view(target: Any) -> bool:
    return bool(getattr(target, "is_view", False)) or getattr(target, "__name__", "") == "getitem"
