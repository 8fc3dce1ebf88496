"""Pipeline parallelism with the schedules of ``torch.distributed.pipelining``.

``models.parallel.pipeline_stages`` defines a stage. Losses of a stage's own blocks (the balance of
experts) never reach the last rank: their gradients are injected where the stage's output passes.

Each micro-batch takes as much host time as a full batch on one device. Therefore autocast casts the
weights once per step, and the division by the number of micro-batches is part of the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

import kernels
from models import LanguageModel
from models.parallel.pipeline_stages import StageOutput
from workbench.runner.distributed.collectives import all_gather_bytes, hold
from workbench.runner.distributed.counted_stage import counted_stage
from workbench.runner.distributed.stage_metrics import StageMetrics

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.distributed.local_weights import LocalWeights
    from workbench.runner.interfaces import DividedBuild, DividedVariant, StepRecord
    from workbench.runner.workloads import Compute

SCHEDULES = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
}
Usage = tuple[dict[str, dict[str, int]], dict[str, tuple[str, str]]]  # as ``kernels`` reports them


class StepCounts(NamedTuple):
    """Counts of one rank's last step."""

    blocks: int  # blocks that the last micro-batch passed
    forwards: int
    backwards: int
    weights: int  # backward passes for weights alone
    in_flight: int  # passes of its stages whose gradients are not all computed, at most
    sends: int
    receives: int
    bytes: int  # sent and received


class _Inject(torch.autograd.Function):
    """Identity of the residual stream; backward gives a block's loss its gradient, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, loss_gradient: Tensor) -> Tensor:
        ctx.loss_gradient = loss_gradient
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, ctx.loss_gradient.clone(), None


class _Chunk(nn.Module):
    """A chunk as torch's schedules call it; the last one returns its loss as its output."""

    def __init__(self, pipeline: Pipeline, compute: Any, chunk: int) -> None:
        super().__init__()
        self._pipeline, self._compute, self._chunk = pipeline, compute, chunk

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield the stage's parameters, for schedules that compute their gradients apart."""
        return cast("Iterator[nn.Parameter]", self._pipeline.parameters())

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Run the chunk on a micro-batch."""
        return self._pipeline.run_chunk(self._compute, x, targets, self._chunk)


class Pipeline:
    """One rank's stage, and the schedule of its micro-batches."""

    def __init__(self, build: DividedBuild, weights: LocalWeights, model: Model) -> None:
        assert isinstance(model, LanguageModel)
        self._build, self._weights, self._model = build, weights, model
        self.stage, self.stages = weights.stage, weights.stages
        self.chunks = max(1, len(self.stage.chunks))  # chunks per rank
        self.micro_batches = build.micro_batches
        self.step_counts: list[StepCounts] = []  # by rank, in the last step that was compared
        self.scaler: torch.amp.GradScaler | None = None
        self._device = build.situation.device
        self._metrics = StageMetrics(model, self.micro_batches)
        self._usage: Usage | None = None  # usage of the first step on later stages
        self._knows_usage = False
        self._compute: Compute | None = None
        self._schedule: Any = None
        self._torch_stages: list[Any] = []
        self._applied_blocks = [0] * self.chunks  # applied by the last micro-batch, by chunk
        self._losses: list[Tensor] = []
        self._loss_gradient = torch.ones((), device=self._device)  # for the loss of a micro-batch

    def parameters(self) -> Iterator[Tensor]:
        """Yield the parameters that this rank trains."""
        yield from (p for p in self._weights.own.parameters.values() if p.requires_grad)

    def local_compute(self, model: Model) -> Compute:
        """Return the function that computes the stage: its residual stream and loss."""
        assert isinstance(model, LanguageModel)

        def stage(x: Tensor, targets: Tensor) -> StageOutput:
            return model.stage_loss(x, targets)

        return cast("Compute", stage)

    def steps(self, compute: Compute) -> Compute:
        """Return a function that runs the schedule, including the backward passes."""
        self._compute = compute

        def run_schedule(tokens: Tensor, targets: Tensor) -> Tensor:
            is_later_stage = self._weights.layout.coordinates(dist.get_rank()).pipeline > 0
            watched = is_later_stage and self._usage is None
            if watched:
                kernels.reset_usage()
            self._begin()
            count = self.micro_batches
            scale = (
                1.0
                if self.scaler is None
                else self.scaler.scale(torch.ones_like(self._loss_gradient))
            )
            self._loss_gradient = torch.ones_like(self._loss_gradient) * scale / count
            self._metrics.reset()
            # Autocast forgets its casts where the outermost region ends: here, and not after each
            # micro-batch. In between it is off, as it has to be in backward passes.
            with torch.autocast(self._device.type, enabled=False):
                self._call(self._schedule.step, tokens, targets)
            self._metrics.share(self._weights.mesh.group_of("pipeline"))
            if watched:
                self._usage = kernels.usage(), kernels.reasons()
            return self._total()

        return run_schedule

    def prepare(self) -> None:
        """Create torch's stage and schedule; no shape is inferred by running."""
        assert self._compute is not None
        # With fewer micro-batches than stages, 1F1B has no steady state and torch refuses it.
        few = self.micro_batches < len(self.stages)
        schedule = "gpipe" if few else self._build.schedule
        self._torch_stages, self._schedule = self._make(self._compute, schedule)

    def run_chunk(self, compute: Any, x: Tensor, targets: Tensor, chunk: int) -> Tensor:
        """Run a chunk on one micro-batch; keep its loss, or inject its gradient."""
        self._model.passage, self._model.applied_blocks = self.stage.passage(chunk), 0
        output: StageOutput = compute(x, targets)
        self._applied_blocks[chunk] = self._model.applied_blocks
        self._metrics.add(chunk)
        if output.loss is not None:
            self._losses.append(output.loss.detach().float())
        if output.x is None:
            assert output.loss is not None
            return torch.stack([output.loss])  # torch detaches it in place, unless it is a view
        stream: Tensor = output.x
        if output.loss is not None and stream.requires_grad:
            stream = cast("Tensor", _Inject.apply(stream, output.loss, self._loss_gradient))
        if self._build.schedule == "zero_bubble" and stream._base is not None:
            return stream.clone()  # torch detaches it in place, which is not allowed for a view
        return stream

    def outputs(self, variant: DividedVariant) -> Any:
        """Return the logits on rank 0; the last stage computes them."""
        model = variant.autocast(variant.model)
        logits: list[Tensor] = []

        def forward(x: Tensor, _: Tensor) -> StageOutput:
            output = model(x)
            if self._model.passage.last:
                logits.append(output)
                return StageOutput(None, torch.zeros((), device=self._device))
            return StageOutput(output, None)

        self._evaluate(forward, variant)
        mesh, rows = self._weights.mesh, variant.batches.inputs[0]
        group, last = mesh.group_of("pipeline"), len(self.stages) - 1
        at = dist.get_rank(group)
        if at == last:
            dist.send(torch.cat(logits), group=group, group_dst=0)
        elif at == 0:
            vocabulary = self._model.embedding.weight.shape[0]
            dtype = self._build.autocast or self._build.weights_dtype
            received = torch.empty((*rows.shape, vocabulary), dtype=dtype, device=self._device)
            dist.recv(received, group=group, group_src=last)
            return received
        return None

    def loss(self, variant: DividedVariant) -> Tensor:
        """Return the loss as steps compute it, without gradients."""
        self._evaluate(variant.compute, variant)
        return self._total()

    @torch.no_grad()
    def finish_gradients(self) -> None:
        """Sum gradients of parameters on several ranks: tied embedding and head, replicas."""
        layout, mesh = self._weights.layout, self._weights.mesh
        if layout.averaged > 1 and not self._build.sharding:
            gradients = [
                p.grad for p in self._weights.own.parameters.values() if p.grad is not None
            ]
            for gradient in gradients:
                dist.all_reduce(gradient, group=mesh.averaging())
                gradient /= layout.averaged
        group, last = mesh.group_of("pipeline"), len(self.stages) - 1
        other = last if self.stage.first else 0
        for parameter in self._weights.on_both_ends():
            assert parameter.grad is not None
            local_gradient = (
                parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
            )
            remote_gradient = torch.empty_like(local_gradient)
            for work in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, local_gradient, group=group, group_peer=other),
                    dist.P2POp(dist.irecv, remote_gradient, group=group, group_peer=other),
                ]
            ):
                work.wait()
            self._torch_stages[0].count("sends", [local_gradient])
            self._torch_stages[0].count("receives", [remote_gradient])
            hold(remote_gradient)
            # Equal to the last bit on both, whichever comes first.
            local_gradient += remote_gradient

    def share_records(self, record: StepRecord) -> None:
        """Send all ranks the counts of the last step, and rank 0 the kernels that others called."""
        rows = torch.zeros(self._weights.layout.ranks, len(StepCounts._fields), dtype=torch.int64)
        rows[dist.get_rank()] = torch.tensor(self._count_step())
        rows = rows.to(self._device)
        dist.all_reduce(rows, group=self._weights.mesh.group)
        self.step_counts = [StepCounts(*row) for row in rows.tolist()]
        payloads = all_gather_bytes(
            msgspec.json.encode(self._usage), self._device, self._weights.mesh.group
        )
        if dist.get_rank() or self._knows_usage:  # workers may know this variant longer than rank 0
            return
        self._knows_usage = True
        for payload in payloads:
            decoded = msgspec.json.decode(payload, type=Usage | None)
            if decoded is None:
                continue
            usage, reasons = decoded
            for operator, by in usage.items():
                counts = record.usage.setdefault(operator, {})
                for name, calls in by.items():
                    counts[name] = counts.get(name, 0) + calls
            record.reasons = reasons | record.reasons

    def _count_step(self) -> StepCounts:
        counts = self._torch_stages[0].counts
        return StepCounts(
            sum(self._applied_blocks), *(counts[name] for name in StepCounts._fields[1:])
        )

    def _begin(self) -> None:
        self._losses.clear()
        self._applied_blocks = [0] * self.chunks
        for stage in self._torch_stages:
            stage.reset()

    def _total(self) -> Tensor:
        """Return the mean loss of the micro-batches, of all stages."""
        total = torch.zeros((), device=self._device)
        if self._losses:
            total = torch.stack(self._losses).sum() / self.micro_batches
        dist.all_reduce(total, group=self._weights.mesh.group_of("pipeline"))
        hold(total)
        return total

    def _evaluate(self, compute: Any, variant: DividedVariant) -> None:
        """Run all micro-batches forward."""
        _, schedule = self._make(compute, "gpipe")
        self._losses.clear()
        tokens, targets = variant.batches.inputs + variant.batches.targets
        with torch.autocast(self._device.type, enabled=False):
            self._call(schedule.eval, tokens, targets)

    def _call(self, run: Any, tokens: Tensor, targets: Tensor) -> None:
        """Run a schedule; only the first stage passes tokens, and only the last one targets."""
        inputs = (tokens,) if self.stage.first else ()
        try:
            run(*inputs, target=targets if self.stage.last else None, targets=targets)
        finally:
            self._model.passage = self.stage.passage(None)

    def _make(self, compute: Any, schedule: str) -> tuple[list[Any], Any]:
        """Return torch's stages, one for each chunk, and their schedule."""
        from torch.distributed.pipelining import schedules

        stages = [self._torch_stage(compute, chunk) for chunk in range(self.chunks)]
        if self.chunks > 1:  # otherwise two chunks of a rank would be one stage
            schedule = self._build.schedule
        kind = getattr(schedules, SCHEDULES[schedule])
        for stage in stages:
            stage.counts = stages[0].counts
        scheduled = stages if self.chunks > 1 else stages[0]
        options = {"loss_fn": self._scaled, "scale_grads": False}
        return stages, kind(scheduled, self.micro_batches, **options)

    def _torch_stage(self, compute: Any, chunk: int) -> Any:
        settings, layout = self._build.situation.configuration.settings, self._weights.layout
        rows = int(settings["batch"]) // layout.data // self.micro_batches
        sequence = int(settings["sequence"])
        dtype = self._build.weights_dtype
        trained: dict[str, Any] = {"device": "meta", "requires_grad": True}
        shape = (rows, sequence // layout.context, self._model.dim)
        stream = torch.empty(shape, dtype=dtype, **trained)
        tokens = torch.empty((rows, sequence), dtype=torch.int64, device="meta")
        loss = torch.empty(1, dtype=torch.promote_types(dtype, torch.float32), **trained)
        passage, ranks = self.stage.passage(chunk), layout.pipeline
        return counted_stage()(
            _Chunk(self, compute, chunk),
            layout.coordinates(dist.get_rank()).pipeline + chunk * ranks,
            ranks * self.chunks,
            self._device,
            input_args=(tokens if passage.first else stream,),
            output_args=(loss if passage.last else stream,),
            group=self._weights.mesh.group_of("pipeline"),
        )

    def _scaled(self, loss: Tensor, _: Tensor) -> Tensor:
        """Return a micro-batch's loss times its gradient, for the backward pass."""
        return (loss * self._loss_gradient).sum()
