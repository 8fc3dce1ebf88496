"""On two GPUs: a divided step makes the update of the whole batch, and takes less time."""

from __future__ import annotations

import pytest
import torch
from built import collect_evidence, step_without_peer, stepped
from rank_checks import BF16, assert_right, configure, on_gpus

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.distributed import world

pytestmark = on_gpus


@pytest.mark.parametrize("family", ["hydra", "mamba2", "adaattn", "mahia", "moe"])
@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
def test_two_gpus_train_as_one_does(family, toggles):
    configuration = configure(family, sequence=32)
    arm = stepped(
        configuration, device="cuda", steps=4, arms=VariantCache(), data_parallel="2", **toggles
    )
    assert_right(arm, "data_parallel")


@pytest.mark.parametrize(
    "toggles", [{"compile": "default"}, {"checkpointing": "full"}, {"precision": "amp_fp16"}]
)
def test_other_options_go_with_it(toggles):
    configuration = configure()
    arm = stepped(
        configuration, device="cuda", steps=4, arms=VariantCache(), data_parallel="2", **toggles
    )
    assert {status for status, _ in collect_evidence(arm).values()} == {"effective"}
    assert_right(arm)


def test_a_killed_peer_lets_the_gpu_go_on():
    configuration, arms = configure(), VariantCache()
    arm = stepped(configuration, device="cuda", arms=arms, data_parallel="2")
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        step_without_peer(arm)
    again = stepped(configuration, device="cuda", steps=2, arms=arms, data_parallel="2")
    assert collect_evidence(again)["data_parallel"][0] == "effective"


def test_a_divided_step_takes_less_time_and_memory():
    configuration = Configuration(
        family="hydra",
        preset="base",
        settings={"batch": 32, "sequence": 1024},
        workload="train",
    )
    times, peaks = [], []
    for ranks in ("off", "2"):
        arm = stepped(
            configuration, device="cuda", steps=8, arms=VariantCache(), data_parallel=ranks, **BF16
        )
        torch.cuda.reset_peak_memory_stats()
        with arm.entered():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(10):
                arm.batches.advance()
                arm.step()
            end.record()
            end.synchronize()
        times.append(begin.elapsed_time(end) / 10)
        peaks.append(torch.cuda.max_memory_allocated())
        del arm
    print(f"ms {times}, peak MiB {[peak >> 20 for peak in peaks]}")
    assert times[1] < 0.75 * times[0]
    assert peaks[1] < 0.8 * peaks[0]
