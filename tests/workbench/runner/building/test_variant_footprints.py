"""An arm's own memory is told apart from what is held for others that are kept ready."""

from __future__ import annotations

import gc
import math
import time
import weakref

import pytest
import torch
from built_arms import configuration, stepped
from recording_wire import RecordingWire

from sessions.model import Phase
from sessions.verdicts.comparison import OTHERS, OWN_PEAK
from workbench import protocol
from workbench.runner.building import variant_cache
from workbench.runner.building.graph_pools import resident_bytes
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.run import Run, RunEnded
from workbench.runner.instruments.memory import GpuMemory, Memory
from workbench.runner.instruments.timing import Lap
from workbench.runner.variants import footprints
from workbench.runner.variants.footprints import _storages

CPU = torch.device("cpu")
CODES = "int8_weight_only"


def requested(option="none", workload="forward", **toggles):
    return configuration("hydra", workload, toggles={"quantization": option, **toggles})


def bytes_of(tensors):
    """Return the bytes of distinct storages."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def of_itself(arm):
    """Buffers and batches: two arms never share these."""
    return bytes_of([*arm.model.buffers(), *arm.batches.tensors()])


def test_an_arm_alone_has_nothing_of_others_beside_it():
    for option in ("none", CODES):
        arms = VariantCache()
        assert arms.others_bytes(stepped(requested(option), arms)) == 0


def test_a_quantized_arm_is_not_charged_the_weights_that_only_the_plain_one_holds():
    arms = VariantCache()
    plain, coded = (stepped(requested(option), arms) for option in ("none", CODES))
    codes = bytes_of([part for pair in coded.weights.codes.values() for part in pair])
    assert 0 < codes < coded.weights.plain_bytes
    assert arms.others_bytes(coded) == coded.weights.plain_bytes + of_itself(plain)
    assert arms.others_bytes(plain) == of_itself(coded) > codes, "which are buffers"
    arms.forget(plain.situation)
    del plain
    again = stepped(requested(CODES, triton_rms_norm="torch"), arms)
    gc.collect()
    assert arms.others_bytes(again) == of_itself(coded) - codes, (
        "codes are shared, the plain are freed"
    )


def test_it_is_counted_once_until_an_arm_comes_or_goes(monkeypatch):
    counted = []

    def count(*args):
        counted.append(args)
        return footprints.others_bytes(*args)

    monkeypatch.setattr(variant_cache, "others_bytes", count)
    arms = VariantCache()
    plain = stepped(requested(), arms)
    assert [arms.others_bytes(plain) for _ in range(3)] == [0] * 3 and len(counted) == 1
    other = stepped(requested(triton_rms_norm="torch"), arms)
    beside = [arms.others_bytes(plain) for _ in range(3)]
    assert beside == [of_itself(other)] * 3 and len(counted) == 2
    assert stepped(requested(), arms) is plain, "it goes back to one that is there"
    assert arms.others_bytes(plain) == beside[0] and len(counted) == 2
    arms.forget(other.situation)
    assert arms.others_bytes(plain) == 0
    for forget in (arms.forget_variants, arms.forget_all):
        plain, other = (
            stepped(requested(**more), arms) for more in ({}, {"triton_rms_norm": "torch"})
        )
        assert arms.others_bytes(plain) > 0
        forget()
        assert arms.others_bytes(plain) == 0


def test_what_arms_share_is_the_own_of_each():
    arms = VariantCache()
    first, second = (stepped(requested(triton_rms_norm=name), arms) for name in ("follow", "torch"))
    assert first.weights is second.weights
    assert arms.others_bytes(first) == of_itself(second)
    assert arms.others_bytes(second) == of_itself(first)


def test_moments_are_the_own_of_an_arm_that_trains_and_of_no_other():
    arms = VariantCache()
    train = stepped(requested(workload="train"), arms)
    forward = stepped(requested(), arms)
    moments = bytes_of(train.trainer.tensors())
    assert moments > 2 * train.weights.bytes
    assert arms.others_bytes(forward) == moments + of_itself(train)
    assert arms.others_bytes(train) == of_itself(forward)


def test_a_decode_state_is_the_own_of_its_arm():
    arms = VariantCache()
    forward, decode = stepped(requested(), arms), stepped(requested(workload="decode"), arms)
    state = bytes_of([*decode.decoder.cache.tensors(), *decode.decoder.progress.values()])
    assert state >= decode.decoder.cache.bytes() > 0
    beside = arms.others_bytes(forward) - of_itself(decode)
    assert decode.decoder.cache.bytes() <= beside <= state, "the prompt is of the batch"
    assert arms.others_bytes(decode) == of_itself(forward)


def test_step_counts_that_an_optimizer_keeps_on_the_host_are_nothing_on_the_gpu():
    assert _storages([torch.zeros(24)], "cuda") == {}
    both = torch.zeros(24)
    assert list(_storages([both, both[3:]], "cpu").values()) == [96], "two looks at one storage"


# What is told


def test_the_allocators_peak_comes_with_what_others_hold_of_it(monkeypatch):
    stats = {
        "allocated_bytes": {"all": {"current": 100, "peak": 300}},
        "reserved_bytes": {"all": {"current": 900}},
    }
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 250)
    counted = []
    arm = stepped(requested())
    memory = GpuMemory(
        torch.device("cuda:0"),
        resident_bytes,
        lambda arm: counted.append(arm) or 120,
    )
    assert memory.sample()[:4] == (100, 900, 300, 0), "nobody steps"
    memory.track(arm)
    assert [memory.sample().others_bytes for _ in range(3)] == [120] * 3
    assert counted == [arm], "once a phase"
    began_ns = time.perf_counter_ns()
    memory.new_phase()
    now = memory.sample()
    assert now.others_bytes == 120 and len(counted) == 2
    assert (now.peak_of(time.perf_counter_ns()), now.peak_of(began_ns)) == (300, 250)


def test_steps_of_the_phase_before_keep_their_peak_and_tell_nothing_of_the_one_that_began(context):
    now = Memory(100.0, 1000.0, 150.0, 0.0, before=900.0, since_ns=50)
    context.memory.sample = lambda: now
    context.send_steps([Lap(start_ns, None, 1.0, Phase.STEADY) for start_ns in (20, 40)])
    assert not [m for m in context.wire.sent if isinstance(m, protocol.Facts)]
    context.send_steps([Lap(start_ns, None, 1.0, Phase.STEADY) for start_ns in (45, 50)])
    steps = [m.columns["peak"] for m in context.wire.sent if isinstance(m, protocol.Steps)]
    assert steps == [[900.0, 900.0], [900.0, 150.0]]
    (ledger,) = [m.ledger for m in context.wire.sent if isinstance(m, protocol.Facts)]
    assert ledger[OWN_PEAK] == 150.0


@pytest.fixture
def context():
    context = RunnerContext(RecordingWire(), torch.device("cpu"))
    context.begin_segment()
    return context


def send(context, phase, *memory):
    context.memory.sample = lambda: Memory(0.0, 1000.0, *memory)
    context.send_steps([Lap(0, None, 1.0, phase)])
    return [m.ledger for m in context.wire.sent if isinstance(m, protocol.Facts)]


def test_a_segment_is_told_its_highest_steady_peak_without_what_others_held(context):
    assert send(context, Phase.WARM_UP, 900.0, 0.0) == []
    (first,) = send(context, Phase.STEADY, 700.0, 300.0)
    assert first == {OWN_PEAK: 400.0, OTHERS: 300.0}
    assert len(send(context, Phase.STEADY, 600.0, 300.0)) == 1, "no higher"
    assert send(context, Phase.STEADY, 600.0, 100.0)[-1] == {OWN_PEAK: 500.0, OTHERS: 100.0}
    context.begin_segment()
    assert send(context, Phase.STEADY, 200.0, 0.0)[-1] == {OWN_PEAK: 200.0, OTHERS: 0.0}
    context.segment = 0
    assert len(send(context, Phase.STEADY, 600.0, 300.0)) == 3, "a block of the first arm again"


def test_where_no_allocator_counts_nothing_is_told_of_an_arms_own_memory(context):
    assert send(context, Phase.STEADY, 700.0, math.nan) == []
    assert math.isnan(
        RunnerContext(RecordingWire(), torch.device("cpu")).memory.sample().others_bytes
    )


def test_what_a_step_gave_is_given_back_before_the_next_one_begins(monkeypatch):
    gave, alive = [], []
    set_variant = RunnerContext.set_variant

    def watched(context, arm):
        if arm is not None:
            step = arm.step

            def counted():
                alive.extend(reference for reference in gave if reference() is not None)
                output = step()
                gave[:] = [weakref.ref(output)]
                return output

            monkeypatch.setattr(arm, "step", counted)
        set_variant(context, arm)

    monkeypatch.setattr(RunnerContext, "set_variant", watched)
    run = Run(
        RunnerContext(RecordingWire(), CPU), protocol.Start(configuration=requested(), steps=4)
    )
    with pytest.raises(RunEnded, match="done"):
        run.execute()
    assert gave and not alive
