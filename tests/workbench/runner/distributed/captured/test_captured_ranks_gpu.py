"""On two GPUs: each rank captures its part of a step, and the replays train as one GPU does."""

from __future__ import annotations

import time

import pytest
import torch
from built import step_without_peer, stepped
from rank_checks import assert_right, configure, on_gpus

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.distributed import world
from workbench.runner.experiments import checks
from workbench.runner.failures import Mistake
from workbench.runner.variants.variant import Variant

pytestmark = on_gpus
GRAPHS = {"cuda_graphs": "on", "adamw": "fused", "precision": "amp_bf16"}
DATA, TENSOR = {"data_parallel": "2"}, {"tensor_parallel": "2"}
PIPELINE, CONTEXT = {"pipeline_parallel": "2"}, {"context_parallel": "2"}

UNUSED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.used(x)

def build():
    def make_inputs(batch):
        return (torch.randn(batch, 16),)

    return Model(), make_inputs, lambda output, x: output.square().mean()
"""


def step_on_gpus(
    configuration: Configuration, arms: VariantCache | None = None, **toggles: str
) -> Variant:
    return stepped(
        configuration, device="cuda", steps=3, arms=arms or VariantCache(), **GRAPHS | toggles
    )


@pytest.mark.parametrize(
    ("family", "toggles"),
    [
        *((family, DATA) for family in ("hydra", "mamba2", "adaattn", "mahia", "moe")),
        ("hydra", DATA | {"compile": "default", "triton": "on"}),
        ("hydra", DATA | {"gradient_compression": "bf16"}),
        ("hydra", DATA | {"precision": "amp_fp16"}),
        ("hydra", DATA | {"sharding": "full"}),
        ("hydra", DATA | {"sharding": "gradients", "compile": "default"}),
        ("hydra", TENSOR | {"sequence_parallel": "on", "compile": "default"}),
        ("hydra", TENSOR | {"precision": "amp_fp16"}),
        ("mamba2", TENSOR),
        ("hydra", PIPELINE),
        ("hydra", PIPELINE | {"precision": "amp_fp16", "compile": "default"}),
        ("hydra", PIPELINE | {"schedule": "interleaved"}),
        ("hydra", PIPELINE | {"schedule": "zero_bubble", "triton": "on"}),
        ("mamba2", PIPELINE),
        ("hydra", CONTEXT),
        ("mamba2", CONTEXT),
    ],
    ids=str,
)
def test_captured_ranks_train_as_one_gpu_does(family, toggles):
    arm = step_on_gpus(configure(family), **toggles)
    assert arm.step.replays == 3
    assert_right(arm, "cuda_graphs", *(name for name in toggles if "_parallel" in name))


def test_a_captured_and_an_eager_configuration_go_on_from_each_other_without_moving_weights():
    configuration, arms = configure(), VariantCache()
    moved = []
    for graphs in ("off", "on", "off", "on"):
        arm = step_on_gpus(configuration, arms, cuda_graphs=graphs, **DATA)
        moved.append(arm.divided.moved_bytes)
    assert moved[1:] == [0, 0, 0]
    assert_right(arm, "data_parallel", "cuda_graphs")


def test_other_layouts_load_what_replays_have_trained():
    configuration, arms = configure(), VariantCache()
    step_on_gpus(configuration, arms, **DATA)
    step_on_gpus(configuration, arms, cuda_graphs="off", **TENSOR)
    step_on_gpus(configuration, arms, **DATA)
    arm = step_on_gpus(configuration, arms, cuda_graphs="off", **TENSOR)
    assert arm.divided.moved_bytes > 0
    assert_right(arm, "tensor_parallel")


@pytest.mark.parametrize("toggles", [DATA, PIPELINE], ids=str)
def test_no_replay_waits_for_the_host_or_leaves_memory_behind(toggles):
    arm = step_on_gpus(configure(), **toggles)
    for result in (checks.no_syncs(arm), checks.steady_memory(arm, 8)):
        assert result.status == "pass", (result.evidence, result.lines)


@pytest.mark.parametrize("toggles", [DATA, PIPELINE], ids=str)
def test_a_killed_peer_lets_the_gpu_go_on(toggles):
    configuration, arms = configure(), VariantCache()
    arm = step_on_gpus(configuration, arms, **toggles)
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        step_without_peer(arm)
    began_s = time.monotonic()
    while arm.step.graph is not None or torch.distributed.is_initialized():
        assert time.monotonic() < began_s + world.LEAVE_S, "the communicators are not freed"
        time.sleep(0.1)
    again = step_on_gpus(configuration, arms, **toggles)
    assert_right(again, "cuda_graphs", *toggles)


def test_a_parameter_without_a_gradient_is_reported_with_its_remedy(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text(UNUSED)
    configuration = Configuration(
        family="own", preset="file", workload="train", model={"source": str(source)}
    )
    with pytest.raises((Mistake, world.RankError), match="a gradient of every parameter"):
        step_on_gpus(configuration, **DATA)
