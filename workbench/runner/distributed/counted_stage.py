"""torch's pipeline stage that counts what it does, for the evidence.

It also repairs zero-bubble schedules. Between the backward passes for the input and for the weights
of a micro-batch, torch holds nodes of the autograd graph, but a node of a Python function (a Triton
kernel) does not outlive its graph: torch 2.11 then failed with "Attribute '_input_metadata' is
invalid". The stage holds the graph until the second pass has ended.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

if TYPE_CHECKING:
    import torch.distributed as dist


class CountsCalls:
    """Base in front of torch's stage, with ``counts`` of passes, messages and their bytes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.counts: Counter[str] = Counter()
        self._recent: list[Tensor] = []
        self._graphs: dict[int, GradientEdge] = {}  # by micro-batch, until weights have gradients

    @property
    def _torch(self) -> Any:
        """Torch's own methods."""
        return super()

    def reset(self) -> None:
        """Begin to count a step."""
        self.counts.clear()
        self._recent = []
        self._graphs.clear()

    def count(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Count messages: ``sends`` or ``receives``."""
        for tensor in tensors:
            self.counts[kind] += 1
            self.counts["bytes"] += tensor.nbytes
            if tensor.device.type == "cpu":
                # Until the next step: gloo's threads let go of tensors after they are done, and
                # memory that another thread frees would seem to be left behind.
                self._recent.append(tensor)

    def forward_one_chunk(self, micro_batch: int, *arguments: Any, **options: Any) -> Any:
        """Run one micro-batch forward."""
        self.counts["forwards"] += 1
        waiting = self.counts["forwards"] - self.counts["completed"]
        self.counts["in_flight"] = max(self.counts["in_flight"], waiting)
        output = self._torch.forward_one_chunk(micro_batch, *arguments, **options)
        if output.requires_grad:
            self._graphs[micro_batch] = get_gradient_edge(output)
        return output

    def backward_one_chunk(self, micro_batch: int, *arguments: Any, **options: Any) -> Any:
        """Run the backward pass of one micro-batch, for weights too if ``full_backward``."""
        self.counts["backwards"] += 1
        result = self._torch.backward_one_chunk(micro_batch, *arguments, **options)
        if options.get("full_backward", True):
            self._complete(micro_batch)
        return result

    def backward_weight_one_chunk(self, micro_batch: int, *arguments: Any, **options: Any) -> Any:
        """Run the backward pass of one micro-batch for weights alone."""
        self.counts["weights"] += 1
        result = self._torch.backward_weight_one_chunk(micro_batch, *arguments, **options)
        self._complete(micro_batch)
        return result

    def get_fwd_send_ops(self, *arguments: Any) -> list[dist.P2POp]:
        """Return the messages with an output."""
        return self._counted("sends", self._torch.get_fwd_send_ops(*arguments))

    def get_bwd_send_ops(self, *arguments: Any) -> list[dist.P2POp]:
        """Return the messages with an input's gradient."""
        return self._counted("sends", self._torch.get_bwd_send_ops(*arguments))

    def get_fwd_recv_ops(self, *arguments: Any) -> list[dist.P2POp]:
        """Return the messages that bring an input."""
        return self._counted("receives", self._torch.get_fwd_recv_ops(*arguments))

    def get_bwd_recv_ops(self, *arguments: Any) -> list[dist.P2POp]:
        """Return the messages that bring an output's gradient."""
        return self._counted("receives", self._torch.get_bwd_recv_ops(*arguments))

    def _complete(self, micro_batch: int) -> None:
        """Release the graph of a micro-batch whose gradients are all computed."""
        self._graphs.pop(micro_batch, None)
        self.counts["completed"] += 1

    def _counted(self, kind: str, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        self.count(kind, [operation.tensor for operation in operations])
        return operations


@functools.cache
def counted_stage() -> type[Any]:
    """Return ``PipelineStage`` with ``CountsCalls``; importing the former takes seconds."""
    from torch.distributed.pipelining import PipelineStage

    return type("CountedStage", (CountsCalls, PipelineStage), {})
