"""A lack of memory on another rank is reported, cured and recorded like one on rank 0.

The memory is really short: the system gives the other process no more.
"""

from __future__ import annotations

import contextlib
import gc
import re
import resource
from collections.abc import Iterator

import msgspec
import process_forks
import psutil
import pytest
import torch
from built import stepped
from rank_checks import CPU, needs_cores
from recording_wire import RecordingWire

from sessions.model import Configuration
from sessions.studies import sweep
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.distributed import world
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.experiments.paired import interleaving
from workbench.runner.experiments.sweep import SweepRun
from workbench.runner.failures import explain, is_fatal, lacks_memory
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.suggested_fixes import with_fix
from workbench.runner.variants.variant import Variant

FREE = resource.RLIM_INFINITY
pytestmark = needs_cores


@pytest.fixture(scope="module", autouse=True)
def new_peers():
    """Start new workers: those that served other tests and those forked have memory to spare."""
    world.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*process_forks.EXEC)
        yield
    world.close()


@pytest.fixture
def configuration(small) -> Configuration:
    """Return a configuration of two ranks whose steps need little memory."""
    model = {**small.model, "dim": 16, "n_layers": 1}
    settings = {"batch": 4, "sequence": 16}
    return msgspec.structs.replace(
        small, workload="train", model=model, settings=settings, toggles={"data_parallel": "2"}
    )


@contextlib.contextmanager
def no_more_memory() -> Iterator[None]:
    """Limit the other rank, which has stepped, to 4 MiB more than it has, for some time."""
    (pid,) = world.of(2, CPU).pids.values()
    most = psutil.Process(pid).memory_info().vms + 2**22
    resource.prlimit(pid, resource.RLIMIT_AS, (most, FREE))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (FREE, FREE))


def enlarge(configuration: Configuration) -> Configuration:
    """Return a variation: its embedding takes 16 MiB, the logits of a step 32 MiB per rank."""
    return msgspec.structs.replace(
        configuration, model={**configuration.model, "vocabulary": 2**18}
    )


def build(configuration: Configuration, arms: VariantCache) -> Variant:
    return arms.get(resolve(configuration, CPU), PhaseTracker(lambda phase: None))


def build_without_memory(configuration: Configuration) -> None:
    with no_more_memory():
        build(enlarge(configuration), VariantCache())


def step_without_memory(configuration: Configuration) -> None:
    arm = build(enlarge(configuration), VariantCache())
    with arm.entered(), no_more_memory():
        arm.step()


def test_other_ranks_free_their_arms_when_the_first_does(configuration):
    arms = VariantCache()
    build(enlarge(configuration), arms)
    ranks = world.current()
    (pid,) = ranks.pids.values()
    before = psutil.Process(pid).memory_info().rss
    arms.forget_variants()
    gc.collect()
    build(configuration, arms)  # the workers have followed all earlier orders
    assert world.current() is ranks
    assert psutil.Process(pid).memory_info().rss < before - 2**23


@pytest.fixture
def context(monkeypatch, configuration) -> RunnerContext:
    stepped(configuration, data_parallel="2")
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    building = Parallel.building

    @contextlib.contextmanager
    def tight(self, configuration, copy):
        large = configuration.model.get("vocabulary") == 2**18
        short = no_more_memory() if large else contextlib.nullcontext()
        with short, building(self, configuration, copy):
            yield

    monkeypatch.setattr(Parallel, "building", tight)
    return RunnerContext(RecordingWire(), CPU)


def record_study(context: RunnerContext):
    recorder = Recorder()
    for message in context.wire.sent:
        recorder.record(protocol.decode_message(protocol.encode(message)))
    (study,) = recorder.session.studies
    return study


def test_in_a_sweep_a_rank_without_memory_is_a_point(context, configuration):
    axes = {"model.vocabulary": [256, 2**18]}
    SweepRun(context, protocol.Sweep(base=configuration, axes=axes, seconds=0.05)).execute()
    table = record_study(context).tables[sweep.POINTS]
    outcomes = dict(zip(table["x"].tolist(), table["outcome"].tolist(), strict=True))
    assert outcomes == {256: "measured", 2**18: sweep.OUT_OF_MEMORY}
    (reason,) = {reason for reason in table["reason"].tolist() if reason}
    assert reason.startswith("Rank 1") and ": Out of memory: " in reason


@pytest.mark.parametrize(
    ("lack", "lives", "where"),
    [(build_without_memory, True, ""), (step_without_memory, False, r" \(in step \d+\)")],
)
def test_a_rank_without_memory_is_reported_as_out_of_memory_with_its_cure(
    configuration, lack, lives, where
):
    arm = stepped(configuration, data_parallel="2")
    with pytest.raises(world.RankError) as raised:
        lack(configuration)
    failure = explain(raised.value)
    assert failure.kind == "out-of-memory" and not is_fatal(raised.value)
    assert re.match(rf"Rank 1{where}( ended)?: Out of memory: ", failure.sentence)
    assert failure.sentence.endswith("iB more was needed.")
    own, theirs = failure.detail.split("\nOn rank 1:\n")
    assert "RankError" in own and "allocate memory: you tried to allocate" in theirs
    assert with_fix(failure, configuration, CPU).set == {"sharding": "full"}
    assert (world.current() is not None) == lives
    if lives:
        with arm.entered():
            arm.step()


def test_where_ranks_fail_one_after_another_the_lack_of_memory_is_reported():
    world.close()
    alone = world.World(1, CPU)
    short = protocol.Failure(kind="out-of-memory", sentence="Out of memory: 1 GiB more was needed.")
    gone = protocol.Failure(kind="model", sentence="RuntimeError in the model: a peer has gone")
    for rank, failure in ((2, gone), (1, short), (2, gone)):
        alone.fail(world.RankError("", rank, failure))
    with pytest.raises(world.RankError) as raised:
        alone.check()
    assert (raised.value.rank, raised.value.failure) == (1, short)
    alone.close()


@pytest.mark.slow
def test_a_failure_of_rank_0_is_reported_and_no_rank_steps_afterwards(configuration, monkeypatch):
    arm = build(configuration, VariantCache())
    with arm.entered():
        with monkeypatch.context() as patch:
            patch.setattr(arm.trainer, "after_backward", lambda: torch.empty(2**50))
            with pytest.raises(RuntimeError, match="allocate memory") as raised:
                arm.step()
        assert lacks_memory(raised.value) and not isinstance(raised.value, world.RankError)
        with pytest.raises(world.RankError, match="the other ranks were ended"):
            arm.step()
    assert world.current() is None
