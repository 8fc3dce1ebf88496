"""torch's pipeline stage that counts what it does, for the evidence."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    import torch.distributed as dist


class CountsCalls:
    """Base in front of torch's stage, with ``counts`` of passes, messages and their bytes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.counts: Counter[str] = Counter()
        self._recent: list[Tensor] = []

    @property
    def _torch(self) -> Any:
        """Torch's own methods."""
        return super()

    def reset(self) -> None:
        """Begin to count a step."""
        self.counts.clear()
        self._recent = []

    def count(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Count messages: ``sends`` or ``receives``."""
        for tensor in tensors:
            self.counts[kind] += 1
            self.counts["bytes"] += tensor.nbytes
            if tensor.device.type == "cpu":
                # Until the next step: gloo's threads let go of tensors after they are done, and
                # memory that another thread frees would seem to be left behind.
                self._recent.append(tensor)

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Run one micro-batch forward."""
        self.counts["forwards"] += 1
        waiting = self.counts["forwards"] - self.counts["backwards"]
        self.counts["in_flight"] = max(self.counts["in_flight"], waiting)
        return self._torch.forward_one_chunk(*arguments, **options)

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Run the backward pass of one micro-batch."""
        self.counts["backwards"] += 1
        return self._torch.backward_one_chunk(*arguments, **options)

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Run the backward pass of one micro-batch for weights alone."""
        self.counts["weights"] += 1
        return self._torch.backward_weight_one_chunk(*arguments, **options)

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

    def _counted(self, kind: str, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        self.count(kind, [operation.tensor for operation in operations])
        return operations


@functools.cache
def counted_stage() -> type[Any]:
    """Return ``PipelineStage`` with ``CountsCalls``; importing the former takes seconds."""
    from torch.distributed.pipelining import PipelineStage

    return type("CountedStage", (CountsCalls, PipelineStage), {})
