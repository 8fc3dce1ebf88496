"""Ranks that share each batch: replicas (``DistributedDataParallel``) or shards (``fully_shard``).

Li et al., "PyTorch Distributed" (VLDB 2020), and Zhao et al., "PyTorch FSDP" (VLDB 2023). Both
average gradients over the ranks while the backward pass still runs.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from models.execution.cuda_graph import on_capture_stream
from models.initialisation import keep_marks
from workbench.runner.distributed.collectives import EXPERT
from workbench.runner.distributed.local_weights import LocalWeights, local
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Trait
from workbench.runner.structures import listed_modules
from workbench.runner.training.trainer import Parameters, Weights, overlapping

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.interfaces import DividedBuild
    from workbench.runner.workloads import Compute

_INCOMPLETE = (
    "cuda_graphs: with data parallelism, a captured step needs a gradient of every parameter, but "
    "some have none; switch CUDA graphs off"
)
SHARDING = ("gradients", "full", "offload", "hybrid")


@dataclass
class Reductions:
    """Gradient reductions of the last step."""

    buckets: int = 0
    bytes: int = 0
    sent_bytes: int = 0
    early: int = 0  # begun while the backward pass still had gradients to make


class _Loss(nn.Module):
    """A computation as a module, whose parameters are a model's."""

    def __init__(self, model: nn.Module, compute: Compute) -> None:
        super().__init__()
        self.model, self._compute = model, compute

    def forward(self, *batch: Any) -> Tensor:
        """Compute the loss."""
        return self._compute(*batch)


class Replicate:
    """A loss whose gradients ``DistributedDataParallel`` averages over the replicas."""

    def __init__(
        self, build: DividedBuild, weights: LocalWeights, model: Model, compute: Compute
    ) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise Mistake(
                "data_parallel: no parameter of the model is trained, so that there are no "
                "gradients to average; choose data_parallel=off or workload forward"
            )
        self._weights, self._module = weights, _Loss(model, compute)
        # A graph computes the same gradients in every step, and cannot ask which they are.
        self._captured = build.situation.has(Trait.CAPTURED)
        self._options: dict[str, Any] = {
            "broadcast_buffers": False,
            "init_sync": False,
            "gradient_as_bucket_view": True,
            "find_unused_parameters": not self._captured and _may_leave_unused(build),
        }
        self._compression = build.gradient_compression
        if self._compression == "powersgd" and (why := _why_no_power_sgd(model)):
            raise Mistake(f"gradient_compression: PowerSGD needs real matrices; {why}; choose bf16")
        self._ddp: DistributedDataParallel | None = None
        self._reducer: _Reducer | None = None

    def prepare(self) -> None:
        """Create the reducer, with all other ranks."""
        group = self._weights.mesh.averaging()
        experts = [f"model.{name}" for name in self._weights.cuts_of(EXPERT)]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self._module, experts)
        # Its hooks run on the stream that it is created on.
        stream = on_capture_stream() if self._captured else contextlib.nullcontext()
        with stream, warnings.catch_warnings():  # later than 2.11, torch renames an option
            warnings.simplefilter("ignore", FutureWarning)
            self._ddp = DistributedDataParallel(self._module, process_group=group, **self._options)
        self._reducer = _Reducer(self._compression, self.sent_dtype, group)
        self._ddp.register_comm_hook(self._reducer, _reduce)

    def __call__(self, *batch: Any) -> Tensor:
        """Compute the loss of this rank's rows."""
        assert self._ddp is not None and self._reducer is not None
        self._reducer.reductions = Reductions()
        try:
            loss: Tensor = self._ddp(*batch)
        except RuntimeError as error:
            if self._captured and "finished reduction in the prior iteration" in str(error):
                raise Mistake(_INCOMPLETE) from None
            raise
        return loss

    @property
    def sent_dtype(self) -> torch.dtype | None:
        """Dtype that gradients are rounded to before they are averaged; None if they are not."""
        return torch.bfloat16 if self._compression == "bf16" else None

    @property
    def reductions(self) -> Reductions:
        """Gradient reductions of the last step."""
        return Reductions() if self._reducer is None else self._reducer.reductions

    def finish(self) -> None:
        """Let torch free what it sent in the backward pass."""
        if self._reducer is not None:
            self._reducer.finish()

    def tensors(self) -> Iterator[Tensor]:
        """Return the buckets that gradients lie in."""
        if self._reducer is not None:
            yield from self._reducer.buffers.values()


class _Reducer:
    """Averages buckets of gradients over a group of ranks, and counts what is sent.

    Torch's C++ code holds it, where Python's garbage collector does not look. If it referred to the
    model, the model would never be freed.
    """

    def __init__(
        self, compression: str, sent_dtype: torch.dtype | None, group: dist.ProcessGroup
    ) -> None:
        self.reductions = Reductions()
        self.buffers: dict[int, Tensor] = {}
        self._sent_dtype, self._group = sent_dtype, group
        self._works: list[dist.Work] = []
        self._compressed = 0  # numbers that PowerSGD has sent so far
        self._power_sgd: Any = None
        if compression == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

            self._power_sgd = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=8, start_powerSGD_iter=2
            )

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Begin to average a bucket."""
        buffer, reductions = bucket.buffer(), self.reductions
        reductions.buckets += 1
        reductions.bytes += buffer.nbytes
        reductions.early += not bucket.is_last()
        self.buffers[bucket.index()] = buffer
        if self._power_sgd is not None:
            return self._compress(bucket)
        sent = buffer if self._sent_dtype is None else buffer.to(self._sent_dtype)
        reductions.sent_bytes += sent.nbytes
        sent.div_(self._group.size())
        work = dist.all_reduce(sent, group=self._group, async_op=True)
        self._works.append(work)
        return work.get_future().then(lambda future: _received(future, buffer))

    def finish(self) -> None:
        """Wait for what was sent: until then, NCCL's group holds it, even after the variant."""
        for work in self._works:
            work.wait()
        self._works.clear()

    def _compress(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = self._power_sgd
        reduced: torch.futures.Future[Tensor] = powerSGD_hook.powerSGD_hook(state, bucket)
        if bucket.buffer().device.type == "cpu":
            # Torch's hook sends later parts from gloo's two threads, and waits there. With two
            # buckets both may wait without end, or ranks send in other orders, which ends them.
            reduced.wait()
        before, self._compressed = self._compressed, state.total_numel_after_compression
        # The first steps compress nothing.
        numbers = int(self._compressed - before) or bucket.buffer().numel()
        self.reductions.sent_bytes += numbers * bucket.buffer().itemsize
        return reduced


def _received(future: torch.futures.Future[list[Tensor]], buffer: Tensor) -> Tensor:
    """Return the averaged bucket, in the dtype of its gradients."""
    (received,) = future.value()
    if received.data_ptr() == buffer.data_ptr():
        return received
    return buffer.copy_(received)


def _reduce(reducer: _Reducer, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    return reducer.reduce(bucket)


_reduce.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}


def _why_no_power_sgd(model: Model) -> str:
    """Return why torch's PowerSGD fails for a parameter, or lets ranks diverge; else empty."""
    for name, parameter in model.weights().items():
        if parameter.requires_grad and not parameter.ndim:
            return f"{name} is a scalar"
        if parameter.requires_grad and parameter.is_complex():
            return f"{name} is complex"
    return ""


def _may_leave_unused(build: DividedBuild) -> bool:
    """Return True if some parameter may have no gradient on one rank: an expert without a token."""
    situation = build.situation
    if situation.is_own_model:
        return True
    return situation.family.name not in ("hydra", "mamba2") or getattr(
        situation.config, "mixture_of_recursions", False
    )


def _why_inseparable(weights: Parameters, full_weights: Parameters) -> str:
    """Return why shards of these weights would train otherwise, as a clause; empty if not.

    ``full_weights``: the unsharded ones, where this rank has them.
    """
    if names := overlapping(full_weights):
        return f"{names} share memory, but their shards would not"
    dtypes = sorted({str(parameter.dtype) for parameter in weights.values()})
    if len(dtypes) > 1:
        return f"torch cannot shard parameters of {' and '.join(dtypes)} together"
    for name, parameter in weights.items():
        if not parameter.ndim:
            return f"{name} has no dimension to shard"
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return f"{name} has hooks for its gradient, which its shards would not call"
    return ""


class FullyShard:
    """Applies ``fully_shard`` to the blocks and the root of a model, in place."""

    def __init__(self, build: DividedBuild, weights: LocalWeights, model: Model) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

        self.option, self._weights = build.sharding, weights
        self.mesh = weights.mesh
        options: dict[str, Any] = {"mesh": self.mesh.axes("replicate", "context", "shard")}
        if build.sharding == "gradients":
            options["reshard_after_forward"] = False  # otherwise of blocks, and not of the root
        if build.sharding == "offload":
            pins = build.situation.device.type == "cuda"
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=pins)
        before = model.weights()
        full = {} if weights.full_weights is None else weights.full_weights.parameters
        why = _why_inseparable(before, full)
        if not why and build.situation.is_own_model and (name := model.aliased()):
            why = f"an attribute or a function refers to {name}, and would not to its shards"
        if why:
            raise Mistake(f"own: {why}; switch sharding off")
        self.full_bytes = weights.own.bytes
        self._blocks = list(dict.fromkeys(listed_modules(model)))
        for block in self._blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
        after = model.weights()
        for name, parameter in after.items():
            keep_marks(before[name], parameter)
        weights.own = Weights(after)
        self._registered = False

    def register_methods(self, model: Model) -> None:
        """Gather weights around methods that are not ``forward``, after blocks were compiled."""
        from torch.distributed.fsdp import register_fsdp_forward_method

        if self._registered:
            return
        self._registered = True
        for module, names in (
            (model, ("loss", "stage_loss")),
            *((block, ("branches", "draw")) for block in self._blocks),
        ):
            for name in names:
                if hasattr(module, name):
                    register_fsdp_forward_method(module, name)

    def reshard(self, model: Model) -> None:
        """Free the full weights that a call without a backward pass leaves in its modules.

        What restores a user's model afterwards would put shards back in their place.
        """
        from torch.distributed.fsdp import FSDPModule

        for module in (*self._blocks, model):
            assert isinstance(module, FSDPModule)
            module.reshard()

    @property
    def bytes(self) -> int:
        """Bytes of this rank's weights between steps."""
        distinct = {id(p): p for p in self._weights.own.parameters.values()}  # each weight once
        return sum(local(parameter).nbytes for parameter in distinct.values())

    def moment_bytes(self, optimizer: torch.optim.Optimizer) -> int:
        """Return the bytes of this rank's moments."""
        return sum(
            local(value).nbytes
            for state in optimizer.state.values()
            for kind, value in state.items()
            if kind != "step"
        )
