"""The order of a compiled step's collectives, which is the program's on every rank.

A compiler orders independent calls by the memory that they need. Ranks that split sequences have
different numbers of keys, so their orders can differ, and ranks that wait for different collectives
wait for ever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph

from workbench.runner.distributed import collectives


def ordering_options() -> dict[str, Any]:
    """Return options of ``torch.compile`` that keep collectives in the program's order."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files  # slow

    class ProgramOrder(CustomGraphPass):
        """Makes each collective of a graph depend on the previous one."""

        def __call__(self, graph: Graph) -> None:
            previous = None
            for node in graph.nodes:
                if node.target in _COLLECTIVES:
                    if previous is not None:
                        node.update_kwarg("after", previous)
                    previous = node

        def uuid(self) -> bytes:
            """Identify the pass in the compiler's cache."""
            return get_hash_for_files((__file__, collectives.__file__))

    return {"post_grad_custom_pre_pass": ProgramOrder()}


_COLLECTIVES = frozenset(
    getattr(torch.ops.workbench, name).default
    for name in ("sum_over_ranks", "gather_tokens", "scatter_sum")
)
