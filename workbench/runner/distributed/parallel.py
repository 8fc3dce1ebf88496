"""A variant whose steps run on several ranks: the work around its steps on each rank."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from workbench.runner.distributed import mesh as meshes
from workbench.runner.distributed import world as worlds
from workbench.runner.distributed.collectives import (
    CONTEXT,
    EXPERT,
    TENSOR,
    Traffic,
    broadcast_all,
    communicating,
    hold,
    sum_all,
)
from workbench.runner.distributed.common_step import CommonStep
from workbench.runner.distributed.data import FullyShard, Replicate
from workbench.runner.distributed.lanes import (
    BEGIN,
    END,
    MARK,
    LaneRecorder,
    RankLane,
    gather_lanes,
)
from workbench.runner.distributed.local_weights import LocalWeights, local
from workbench.runner.distributed.messages import (
    Arrange,
    BuildVariant,
    Compare,
    Enter,
    Evaluate,
    Leave,
    Order,
    Record,
    Step,
)
from workbench.runner.distributed.pipeline import Pipeline
from workbench.runner.environment import host
from workbench.runner.failures import Mistake, RankError
from workbench.runner.instruments.memory import PeakReader
from workbench.runner.interfaces import CapturedStep, Trait

if TYPE_CHECKING:
    from models import Model
    from sessions.model import Configuration
    from workbench.runner.batches import Batches
    from workbench.runner.interfaces import DividedBuild, DividedVariant, EnteredVariant
    from workbench.runner.training.trainer import Parameters, Trainer
    from workbench.runner.workloads import Compute
    from workbench.runner.workloads import Step as VariantStep


_variant_ids = itertools.count(1)


class Parallel:
    """One rank's side of a variant of several ranks.

    ``n_differing``: number of parameters that differed between ranks after the last steps; None
    before that. ``peaks``: by rank, the peak bytes allocated in steps; on the CPU resident bytes.
    They include ``pool_bytes``, in the pools of its graphs, and exclude ``others_bytes``, which
    belong to other variants. ``moved_bytes``: weights and moments that the last ``entered`` loaded.
    """

    def __init__(self, build: DividedBuild, weights: LocalWeights, model: Model) -> None:
        self.layout, self.weights = weights.layout, weights
        self.ranks, self.rank = self.layout.ranks, worlds.rank()
        self.n_differing: int | None = None
        self.has_prepared = False  # the variant's preparations have run; on other ranks than 0
        self.peaks: list[int] = []
        self.others_bytes: Callable[[Any], int] = lambda variant: 0
        self.pool_bytes: Callable[[Any], int] = lambda variant: 0
        self.traffic = Traffic()  # last step: inside layers that are sharded across ranks
        self.context_traffic = Traffic()  # among ranks that split sequences
        self.expert_traffic = Traffic()  # among ranks that have other experts
        self.version = 0  # version of the full weights to load, as rank 0 ordered
        self.variant_id = 0 if self.rank else next(_variant_ids)
        self.copy = 0  # number among variants of one configuration
        self.is_set_up = False  # graphs, buckets and pipelines exist on all ranks
        self.moved_bytes = 0
        self.full_parameters: Parameters | None = None  # rank 0: those of all other variants
        self.full_trainer: Trainer | None = None
        if weights.full_weights is not None:
            self.full_parameters = weights.full_weights.parameters
            if build.situation.workload.trains:
                self.full_trainer = weights.full_weights.trainer(
                    build.optimizer, scales_loss=build.scales_loss
                )
        self.replicate: Replicate | None = None
        self.fully_shard: FullyShard | None = None
        self.pipeline: Pipeline | None = None
        self._build, self._device = build, build.situation.device
        self._lane = LaneRecorder(self._device)
        self._along_sequence = build.along_sequence
        self._synchronizes = weights.layout.tensor > 1 and _may_diverge(build)
        self._trainer: Trainer | None = None
        self._step: VariantStep | None = None  # the step of this rank
        self._world: worlds.World | None = None  # set on rank 0 while the variant is entered
        self._depth = self._steps = self._peak_bytes = 0
        self._peak = PeakReader(self._device) if self._device.type == "cuda" else None
        if self.layout.pipeline > 1:
            self.pipeline = Pipeline(build, weights, model)

    @contextlib.contextmanager
    def building(self, configuration: Configuration, copy: int) -> Iterator[None]:
        """Let all ranks build this configuration at the same time."""
        self.copy = copy
        if self.rank:
            yield
            return
        self._request_build(configuration)
        suppression: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        try:
            yield
        except Mistake:  # in the request: the other ranks meet it, too, and must not be blamed
            suppression = contextlib.suppress(RankError)
            raise
        finally:
            if (world := worlds.current()) is not None:
                with suppression:
                    world.await_answers()

    def shard(self, model: Model) -> None:
        """Shard the model's parameters with FSDP if the build does, before there is a trainer."""
        if self._build.sharding:
            self.fully_shard = FullyShard(self._build, self.weights, model)

    def local_batches(self, batches: Batches) -> Batches:
        """Return this rank's rows of each batch."""
        return batches.part(self.layout.data_rank(self.rank), self.layout.data)

    def local_compute(self, compute: Compute, model: Model) -> Compute:
        """Return this rank's part of a workload's computation: of its stage in a pipeline."""
        return compute if self.pipeline is None else self.pipeline.local_compute(model)

    def loss_of_step(self, compute: Compute, model: Model) -> Compute:
        """Return the computation whose result a step differentiates."""
        if self.fully_shard is not None:
            self.fully_shard.register_methods(model)
        if self.pipeline is not None:
            return self.pipeline.steps(compute)
        if self.layout.averaged > 1 and self.fully_shard is None:
            self.replicate = Replicate(self._build, self.weights, model, compute)
            return self.replicate
        return compute

    def attach(self, trainer: Trainer) -> None:
        """Let the trainer reduce gradients over ranks, and let all ranks skip the same updates."""
        self._trainer = trainer
        if self.full_trainer is not None:
            trainer.scaler = self.full_trainer.scaler
        if self.pipeline is not None:
            trainer.backward = _already_done
            self.pipeline.scaler = trainer.scaler
        trainer.sync_found_inf = self._sync_found_inf
        trainer.after_backward = self._finish_gradients

    def counting_traffic(self, step: VariantStep) -> VariantStep:
        """Return this rank's part of a step, with its communication counted.

        A replay of a captured step runs no Python; it communicates as its capture did.
        """

        def counted_step() -> Tensor:
            with self._communicating() as traffic:
                loss = step()
            self.traffic = traffic.get(TENSOR, Traffic())
            self.context_traffic = traffic.get(CONTEXT, Traffic())
            self.expert_traffic = traffic.get(EXPERT, Traffic())
            return loss

        return counted_step

    def on_all_ranks(self, step: VariantStep, batches: Batches) -> CommonStep:
        """Return the step of all ranks, which returns the mean of their losses."""
        self._step = step
        if isinstance(step, CapturedStep):
            worlds.release_first(step)
        return CommonStep(self.step, step, batches)

    def step(self, advances: int = 0, *, captured: bool = True) -> Tensor:
        """Run a step on all ranks; return the mean of their losses.

        ``advances``: the position of the batch. ``captured``: replay the graph of a captured step.
        """
        step, was_captured = self._step, self._is_captured
        assert step is not None
        with self._on_all_ranks(Step(advances, captured)):
            if not captured:
                assert isinstance(step, CapturedStep)
                step = step.uncaptured
            loss = step()
            if self.layout.data * self.layout.context > 1:
                loss = loss.clone()
                dist.all_reduce(loss, group=self.weights.mesh.group)
                hold(loss)
                loss /= self.ranks
        self._steps += 1
        if self._peak is not None and self._is_captured and not was_captured:
            self._peak.restart()  # the steps before the capture used memory outside the pool
        return loss

    @property
    def _is_captured(self) -> bool:
        return isinstance(self._step, CapturedStep) and self._step.graph is not None

    @property
    def chunks(self) -> int:
        """The number of chunks of this rank's stage; 1 without a pipeline."""
        return 1 if self.pipeline is None else self.pipeline.chunks

    @contextlib.contextmanager
    def evaluating(self, name: str, variant: DividedVariant) -> Iterator[None]:
        """Let all ranks evaluate ``name`` with rank 0; replicas are evaluated on rank 0 alone."""
        if self._is_replica and self.layout.context == 1:
            yield
            return
        with (
            self._on_all_ranks(Evaluate(name, variant.batches.advances)),
            self._communicating(),
        ):
            self._load_buffers(variant)
            yield

    def outputs(self, variant: DividedVariant) -> Any:
        """Return the model's outputs for rank 0's batch; within ``evaluating``."""
        if self.pipeline is not None:
            return self.pipeline.outputs(variant)
        outputs = variant.autocast(variant.model)(*variant.batches.inputs)
        if self.fully_shard is not None:
            self.fully_shard.reshard(variant.model)
        return outputs

    def loss(self, variant: DividedVariant) -> Tensor:
        """Return the loss of rank 0's batch as steps compute it; within ``evaluating``."""
        if self.pipeline is not None:
            loss = self.pipeline.loss(variant)
        else:
            loss = variant.compute(*variant.batches.inputs, *variant.batches.targets)
        if self.layout.context > 1:
            loss = loss.detach().clone()
            dist.all_reduce(loss, group=self.weights.mesh.group_of(CONTEXT))
            loss /= self.layout.context
        return loss

    def joint_loss(self, variant: DividedVariant) -> Tensor | None:
        """Return the loss, computed with all ranks; None if a rank can compute alone: no FSDP."""
        if self.fully_shard is None:
            return None
        with self.evaluating("loss", variant):
            return self.loss(variant)

    @contextlib.contextmanager
    def entered(self, variant: EnteredVariant) -> Iterator[None]:
        """Prepare all ranks for steps from the full weights; store and compare them afterwards."""
        if self._depth:
            yield
            return
        world = None if self.rank else self._ready_ranks(variant)
        full = self.weights.full_weights
        if self.full_trainer is not None and full is not None:
            full.sync_step_counts(self.full_trainer.optimizer)
        with self._end_on_error(world):
            self._load(variant)
            self._set_up()
        if self._peak is not None:
            self._peak.restart()  # building is not part of a step
        self._world, self._depth, self._steps = world, 1, 0
        try:
            yield
        finally:
            try:
                if world is not None and world.alive:
                    self.compare(variant)
                    world.send(Leave())
            finally:
                self._depth, self._world = 0, None

    def compare(self, variant: DividedVariant) -> None:
        """Store the weights after steps, and count the parameters that differ between ranks."""
        if not self._steps:
            return
        with self._end_on_error(self._world):
            if self._world is not None:
                self._world.send(Compare())
            self._read_peak(variant)
            self._compare(variant)

    def record_lanes(self, step: Callable[[], object], steps: int) -> list[RankLane]:
        """Profile ``steps`` steps on all ranks inside ``entered``; return their lanes."""
        for phase, count in ((BEGIN, 1), (MARK, steps)):
            self.record(phase)
            for _ in range(count):
                step()
        return self.record(END, steps)

    def record(self, phase: str, steps: int = 0) -> list[RankLane]:
        """Begin, mark or end a recording on all ranks; return the lanes at its end."""
        with self._on_all_ranks(Record(phase, steps)):
            lane = self._lane.record_phase(phase, steps)
            if lane is None:
                return []
            rank_lane = RankLane(self.rank, host(), lane)
            return gather_lanes(rank_lane, self._device, self.weights.mesh.group)

    def _compare(self, variant: DividedVariant) -> None:
        """Compare the ranks' parameters; all ranks take part."""
        part_optimizer, full_optimizer = self._optimizers
        if not self._is_replica:
            self.weights.store(part_optimizer, full_optimizer)
        elif self._is_captured and self.weights.full_weights is not None:
            self.weights.full_weights.entries += (
                1  # a replay trains without a new version of a parameter
            )
        self.n_differing = max(self.weights.count_differing(), self.n_differing or 0)
        self.weights.mark(full_optimizer, current=not self.n_differing)
        peaks = torch.zeros(self.ranks, dtype=torch.int64, device=self._device)
        peaks[self.rank] = self._peak_bytes
        dist.all_reduce(peaks, group=self.weights.mesh.group)
        self.peaks = peaks.tolist()
        if self.pipeline is not None:
            self.pipeline.share_records(variant.record)
        self._steps = 0

    @property
    def is_stale(self) -> bool:
        """True if the model's FSDP mesh belongs to ranks that have ended."""
        return self.fully_shard is not None and self.fully_shard.mesh is not meshes.get(
            self.layout, self._device
        )

    @property
    def _is_replica(self) -> bool:
        """True if each rank has all weights."""
        return self.layout.ranks == self.layout.replicas and not self._build.sharding

    @property
    def _optimizers(self) -> tuple[Optimizer | None, Optimizer | None]:
        """The optimizers of this rank's weights and of the full ones; None where there is none."""
        part_optimizer = None if self._trainer is None else self._trainer.optimizer
        return part_optimizer, None if self.full_trainer is None else self.full_trainer.optimizer

    @staticmethod
    def _end_on_error(world: worlds.World | None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if world is None else world.end_on_error()

    @contextlib.contextmanager
    def _on_all_ranks(self, order: Order) -> Iterator[None]:
        """Run an action of all ranks; if it fails, some ranks cannot leave it."""
        if self._world is not None:
            self._world.send(order)
        try:
            yield
        except BaseException:
            if self._world is not None:
                self._world.give_up()  # another rank's failure may be the cause
            raise

    def _communicating(self) -> contextlib.AbstractContextManager[dict[str, Traffic]]:
        mesh, layout = self.weights.mesh, self.layout
        axes = [axis for axis in (TENSOR, CONTEXT, EXPERT) if getattr(layout, axis) > 1]
        return communicating({axis: mesh.group_of(axis) for axis in axes})

    def _request_build(self, configuration: Configuration) -> worlds.World:
        world = worlds.of(self.ranks, self._device)
        if meshes.get(self.layout, self._device) is None:
            with world.end_on_error():
                world.send(Arrange(list(self.layout)))
                meshes.of(self.layout, self._device)
        world.send(BuildVariant(configuration, self.copy, self.variant_id))
        return world

    def _ready_ranks(self, variant: EnteredVariant) -> worlds.World:
        """Let every rank build the variant, and order it to load the weights unless it has them."""
        # A rank may have ended, or freed the variant.
        world = self._request_build(self._build.situation.configuration)
        answers = world.await_answers()[: self.ranks - 1]
        self.is_set_up &= all(answer.prepared for answer in answers)
        full_optimizer = self._optimizers[1]
        current = self.weights.is_current(full_optimizer)
        self.version = self.weights.version
        if not current or any(answer.version != self.version for answer in answers):
            self.version = self.weights.next_version()
        scaler = None if self._trainer is None else self._trainer.scaler
        scale = {} if scaler is None else scaler.state_dict()
        restores = variant.remembered is not None
        world.send(Enter(self.version, not self.is_set_up, scale, restores))
        return world

    def _load(self, variant: DividedVariant) -> None:
        part_optimizer, full_optimizer = self._optimizers
        self.moved_bytes = 0
        if self.version != self.weights.version:
            self.moved_bytes = self.weights.load(part_optimizer, full_optimizer)
            self.weights.version = self.version
            self.weights.mark(full_optimizer)
        self._load_buffers(variant)

    def _set_up(self) -> None:
        """Create graphs, buckets and pipelines, which needs all ranks, unless all have them."""
        if self.is_set_up:
            return
        self.is_set_up = True
        if isinstance(self._step, CapturedStep):
            self._step.release()  # all ranks capture in the same step
        if self.replicate is not None:
            self.replicate.prepare()
        if self.pipeline is not None:
            self.pipeline.prepare()

    def _load_buffers(self, variant: DividedVariant) -> None:
        """Broadcast the buffers of rank 0 that control how a model adapts."""
        if self.pipeline is not None:
            return  # constants and metrics: no model that adapts has stages
        for buffer in variant.model.buffers():
            sent = buffer.detach().contiguous()
            dist.broadcast(sent, src=0, group=self.weights.mesh.group)
            if sent.data_ptr() != buffer.data_ptr():
                buffer.copy_(sent)

    @torch.no_grad()
    def _finish_gradients(self) -> None:
        """Complete gradients between the backward pass and the update."""
        if self.pipeline is not None:
            self.pipeline.finish_gradients()
        if self.replicate is not None:
            self.replicate.finish()
        if self.layout.expert > 1:
            self._average_experts()
        if self._along_sequence:
            replicated = self.weights.replicated()
            sum_all([local(p.grad) for p in replicated if p.grad is not None])
        if self._synchronizes:
            first = self.rank - self.layout.coordinates(self.rank).tensor
            group = self.weights.mesh.group_of("tensor")
            broadcast_all(self.weights.common(), first, group)

    def _average_experts(self) -> None:
        """Average the gradients of this rank's experts, which are sums over the ranks' tokens."""
        layout, parameters = self.layout, self.weights.by_name
        for name in self.weights.cuts:
            parameter = parameters[name]
            if parameter.grad is None:  # no token chose them
                parameter.grad = torch.zeros_like(parameter)
            if layout.replicas > 1:
                dist.all_reduce(parameter.grad, group=self.weights.mesh.replicas)
            parameter.grad /= layout.averaged

    def _sync_found_inf(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        """All-reduce the non-finite flags, so that every rank skips the same updates."""
        if self.layout.tensor == self.layout.pipeline == self.layout.expert == 1:
            return  # replicas have equal gradients, and torch looks at all of FSDP's shards
        scaler.unscale_(optimizer)
        for flag in scaler._found_inf_per_device(optimizer).values():
            local_flag = local(flag)
            on_any = local_flag.to(self._device)
            dist.all_reduce(on_any, dist.ReduceOp.MAX, group=self.weights.mesh.group)
            hold(on_any)
            local_flag.copy_(on_any)

    def _read_peak(self, variant: DividedVariant) -> None:
        """Read the peak memory of the steps, before the comparison allocates more."""
        if self._peak is not None:
            own_bytes = self._peak.highest() - self.others_bytes(variant)
            self._peak_bytes = own_bytes + self.pool_bytes(variant)
        else:
            self._peak_bytes = int(psutil.Process().memory_info().rss)


def _may_diverge(build: DividedBuild) -> bool:
    """Return True if replicated results could differ between ranks by rounding.

    Compilers choose kernels in each process, and backward passes of unsharded layers may
    add in any order.
    """
    from models.parallel.tensor_parallel_plan import divisible

    situation = build.situation
    replicated = divisible(situation.family, situation.config).replicated
    return situation.has(Trait.COMPILED) or bool(replicated)


def _already_done(loss: Tensor) -> None:
    """Do nothing: the schedule of a pipeline has computed all gradients."""
