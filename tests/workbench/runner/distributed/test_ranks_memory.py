"""A rank that lacks memory: told as the first one's lack is, cured as it is, a data point as it is.

The memory is really short: the system gives the other process no more.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator

import msgspec
import psutil
import pytest
import torch
from built import stepped
from recording_wire import RecordingWire

from sessions.model import Configuration
from sessions.studies import sweep
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.config.resolve import resolve
from workbench.runner.context import Rig
from workbench.runner.distributed import world
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.experiments import interleaving
from workbench.runner.experiments.sweep import SweepRun
from workbench.runner.failures import explain, is_fatal, lacks_memory
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.suggested_fixes import cure
from workbench.runner.variants.variant import Arms

CPU = torch.device("cpu")
FREE = resource.RLIM_INFINITY
pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two CPU cores"
)


@pytest.fixture(scope="module", autouse=True)
def new_peers():
    """Those that have served other tests have memory to spare."""
    world.close()


@pytest.fixture
def asked(small) -> Configuration:
    """Return a step of two ranks that takes little."""
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


def large(asked: Configuration) -> Configuration:
    """Its embedding takes 16 MiB, the logits of a step 32 MiB on each rank."""
    return msgspec.structs.replace(asked, model={**asked.model, "vocabulary": 2**18})


def built(asked: Configuration, arms: Arms):
    return arms.get(resolve(asked, CPU), PhaseTracker(lambda phase: None))


def build_without_memory(asked: Configuration) -> None:
    with no_more_memory():
        built(large(asked), Arms())


def step_without_memory(asked: Configuration) -> None:
    arm = built(large(asked), Arms())
    with arm.entered(), no_more_memory():
        arm.step()


def test_other_ranks_free_their_arms_when_the_first_does(asked):
    arms = Arms()
    built(large(asked), arms)
    made = world.current()
    (pid,) = made.pids.values()
    before = psutil.Process(pid).memory_info().rss
    arms.forget_arms()
    gc.collect()
    built(asked, arms)  # the peers have done what was told before
    assert world.current() is made
    assert psutil.Process(pid).memory_info().rss < before - 2**23


@pytest.fixture
def rig(monkeypatch, asked) -> Rig:
    stepped(asked, data_parallel="2")
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    building = Parallel.building

    @contextlib.contextmanager
    def tight(self, configuration, copy):
        large = configuration.model.get("vocabulary") == 2**18
        short = no_more_memory() if large else contextlib.nullcontext()
        with short, building(self, configuration, copy):
            yield

    monkeypatch.setattr(Parallel, "building", tight)
    return Rig(RecordingWire(), CPU)


def study(rig: Rig):
    recorder = Recorder()
    for message in rig.wire.sent:
        recorder.record(protocol.decode_message(protocol.encode(message)))
    (found,) = recorder.session.studies
    return found


def test_in_a_sweep_a_rank_without_memory_is_a_point(rig, asked):
    axes = {"model.vocabulary": [256, 2**18]}
    SweepRun(rig, protocol.Sweep(base=asked, axes=axes, seconds=0.05)).execute()
    table = study(rig).tables[sweep.POINTS]
    told = dict(zip(table["x"].tolist(), table["outcome"].tolist(), strict=True))
    assert told == {256: "measured", 2**18: sweep.OUT_OF_MEMORY}
    (reason,) = {each for each in table["reason"].tolist() if each}
    assert reason.startswith("Rank 1: Out of memory: ")


@pytest.mark.parametrize(
    ("lack", "lives"), [(build_without_memory, True), (step_without_memory, False)]
)
def test_a_rank_without_memory_is_told_as_out_of_memory_with_its_cure(asked, lack, lives):
    arm = stepped(asked, data_parallel="2")
    with pytest.raises(world.RankError) as raised:
        lack(asked)
    failure = explain(raised.value)
    assert failure.kind == "out-of-memory" and not is_fatal(raised.value)
    assert failure.sentence.startswith("Rank 1: Out of memory: ")
    assert failure.sentence.endswith("iB more was needed.")
    own, theirs = failure.detail.split("\nOn rank 1:\n")
    assert "RankError" in own and "allocate memory: you tried to allocate" in theirs
    assert cure(failure, asked, CPU).set == {"sharding": "full"}
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
def test_what_fails_on_the_first_rank_is_told_and_nothing_after_it_steps(asked, monkeypatch):
    arm = built(asked, Arms())
    with arm.entered():
        with monkeypatch.context() as patch:
            patch.setattr(Parallel, "_finish_gradients", lambda self: torch.empty(2**50))
            with pytest.raises(RuntimeError, match="allocate memory") as raised:
                arm.step()
        assert lacks_memory(raised.value) and not isinstance(raised.value, world.RankError)
        with pytest.raises(world.RankError, match="the other ranks were ended"):
            arm.step()
    assert world.current() is None
